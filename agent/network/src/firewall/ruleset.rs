//! The rules of a slot as the kernel takes them.
//!
//! `nft` translates their text once, in a namespace that serves for nothing else. What the kernel has there then is read back, and
//! is what every slot is given: one message of the kernel's own words instead of a process that reads, translates and asks.
//!
//! What is read back is written again without what the kernel adds of itself (handles, counts of uses) and in the order in which
//! one thing needs another: tables, sets, objects, chains, what sets begin with, rules.

use std::collections::BTreeMap;
use std::io;

use super::FirewallError;
use super::batch::{
    APPEND, CREATE, DUMP, ELEMENT_FLAGS, ELEMENT_KEY, EXCLUSIVE, GET_CHAIN, GET_ELEMENTS, GET_OBJECT, GET_RULE,
    GET_SET, GET_TABLE, LIST_ELEMENTS, LIST_SET, LIST_TABLE, NEW_CHAIN, NEW_ELEMENTS, NEW_OBJECT, NEW_RULE, NEW_SET,
    NEW_TABLE, REQUEST, VALUE, begin, end,
};
use super::rules;
use super::socket::Socket;
use super::wire::{Attributes, Head, TYPE, Writer};
use crate::config::Limits;
use crate::netns::Netns;
use crate::{nft, tap};

/// `NFTA_SET_TABLE`, `NFTA_SET_NAME` and `NFTA_SET_ID` of `linux/netfilter/nf_tables.h`.
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_ID: u16 = 10;

/// A kind of things, and what of it is written again: `NFTA_TABLE_*`, `NFTA_SET_*`, and so on, of `linux/netfilter/nf_tables.h`.
struct Kind {
    get: u16,
    new: u16,
    flags: u16,
    attributes: &'static [u16],
}

/// `NAME`, `FLAGS`, `USERDATA`.
const TABLES: Kind = Kind { get: GET_TABLE, new: NEW_TABLE, flags: EXCLUSIVE, attributes: &[1, 2, 6] };
/// `TABLE` to `DESC`, `TIMEOUT`, `GC_INTERVAL`, `USERDATA`, `OBJ_TYPE`, `EXPR`, `EXPRESSIONS`.
const SETS: Kind =
    Kind { get: GET_SET, new: NEW_SET, flags: 0, attributes: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18] };
/// `TABLE`, `NAME`, `TYPE`, `DATA`, `USERDATA`.
const OBJECTS: Kind = Kind { get: GET_OBJECT, new: NEW_OBJECT, flags: 0, attributes: &[1, 2, 3, 4, 8] };
/// `TABLE`, `NAME`, `HOOK`, `POLICY`, `TYPE`, `USERDATA`.
const CHAINS: Kind = Kind { get: GET_CHAIN, new: NEW_CHAIN, flags: 0, attributes: &[1, 3, 4, 5, 7, 12] };
/// `TABLE`, `CHAIN`, `EXPRESSIONS`, `USERDATA`.
const RULES: Kind = Kind { get: GET_RULE, new: NEW_RULE, flags: APPEND, attributes: &[1, 2, 4, 7] };

/// What is read of a thing: its attributes, types with their flags.
struct Thing {
    family: u8,
    attributes: Vec<(u16, Vec<u8>)>,
}

/// The rules of every slot of a host.
#[derive(Debug, Clone)]
pub struct Ruleset(Writer);

impl Ruleset {
    /// The rules for these limits. Blocks, for as long as `nft` takes.
    ///
    /// # Errors
    /// There is no `nft`, or the kernel is without something that the rules need.
    pub fn translate(limits: &Limits) -> Result<Self, FirewallError> {
        let scratch = Netns::unnamed().map_err(FirewallError::Enter)?;
        // A rule of a link needs that link.
        let _tap = scratch.run(tap::open).map_err(FirewallError::Enter)?;
        let text = rules::ruleset(limits);
        scratch.run(|| Ok(nft::load(&text))).map_err(FirewallError::Enter)?.map_err(FirewallError::Load)?;
        let socket = Socket::open(&scratch).map_err(FirewallError::Enter)?;
        Self::read(&socket).map_err(FirewallError::Read)
    }

    /// All that there is in a namespace.
    fn read(socket: &Socket) -> io::Result<Self> {
        let mut writer = begin();
        write(&mut writer, &TABLES, things(socket, &TABLES)?);
        let mut elements = Vec::new();
        for (set, id) in things(socket, &SETS)?.into_iter().zip(1_u32..) {
            elements.extend(elements_of(socket, &set)?);
            write(&mut writer, &SETS, [set]);
            writer.attribute(SET_ID, &id.to_be_bytes());
        }
        for kind in [&OBJECTS, &CHAINS] {
            write(&mut writer, kind, things(socket, kind)?);
        }
        for Elements { family, table, set, sorted } in elements {
            writer.message(&Head { kind: NEW_ELEMENTS, flags: REQUEST | CREATE, family, resource: 0 });
            writer.attribute(LIST_TABLE, &table);
            writer.attribute(LIST_SET, &set);
            writer.nest(LIST_ELEMENTS, |writer| {
                sorted.values().for_each(|(kind, element)| writer.attribute(*kind, element));
            });
        }
        write(&mut writer, &RULES, things(socket, &RULES)?);
        end(&mut writer);
        Ok(Self(writer))
    }

    /// A batch of messages.
    pub(super) fn messages(&self) -> Writer {
        self.0.clone()
    }
}

/// All of a kind, in the kernel's order.
fn things(socket: &Socket, kind: &Kind) -> io::Result<Vec<Thing>> {
    let head = Head { kind: kind.get, flags: REQUEST | DUMP, family: 0, resource: 0 };
    socket.dump(
        &head,
        |_| {},
        |message, found| {
            if let (true, Some(family)) = (message.kind == kind.new, message.family()) {
                let attributes =
                    message.attributes().raw().filter(|(found, _)| kind.attributes.contains(&(found & TYPE)));
                let attributes = attributes.map(|(kind, value)| (kind, value.to_vec())).collect();
                found.push(Thing { family, attributes });
            }
        },
    )
}

fn write(writer: &mut Writer, kind: &Kind, things: impl IntoIterator<Item = Thing>) {
    for Thing { family, attributes } in things {
        writer.message(&Head { kind: kind.new, flags: REQUEST | CREATE | kind.flags, family, resource: 0 });
        for (kind, value) in attributes {
            writer.attribute(kind, &value);
        }
    }
}

/// What a set begins with.
struct Elements {
    family: u8,
    table: Vec<u8>,
    set: Vec<u8>,
    /// By what the kernel wants them in order of: their keys, and an interval's end before the next one's beginning.
    sorted: BTreeMap<(Vec<u8>, bool), (u16, Vec<u8>)>,
}

/// None of a set that is empty.
fn elements_of(socket: &Socket, set: &Thing) -> io::Result<Option<Elements>> {
    let name = |wanted: u16| {
        let named = set.attributes.iter().find(|(kind, _)| kind & TYPE == wanted);
        named
            .map(|(_, value)| value.clone())
            .ok_or_else(|| io::Error::other("the kernel tells of a set without a name"))
    };
    let (family, table, name) = (set.family, name(SET_TABLE)?, name(SET_NAME)?);
    let head = Head { kind: GET_ELEMENTS, flags: REQUEST | DUMP, family, resource: 0 };
    let which = |writer: &mut Writer| {
        writer.attribute(LIST_TABLE, &table);
        writer.attribute(LIST_SET, &name);
    };
    let sorted = socket.dump(&head, which, |message, found| {
        let list = Some(message).filter(|message| message.kind == NEW_ELEMENTS);
        let list = list.and_then(|message| message.attributes().within(LIST_ELEMENTS));
        for (kind, value) in list.into_iter().flat_map(Attributes::raw) {
            let element = Attributes::of(value);
            let key = element.within(ELEMENT_KEY).and_then(|key| key.find(VALUE)).unwrap_or_default();
            // An interval's end is the only flag that these have.
            let begins = element.find(ELEMENT_FLAGS).is_none();
            found.push(((key.to_vec(), begins), (kind, value.to_vec())));
        }
    })?;
    let sorted: BTreeMap<_, _> = sorted.into_iter().collect();
    Ok((!sorted.is_empty()).then_some(Elements { family, table, set: name, sorted }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::Firewall;

    fn listed(netns: &Netns) -> String {
        String::from_utf8(netns.run(|| nft::run(&["list", "ruleset"], "").map_err(io::Error::other)).unwrap()).unwrap()
    }

    #[test]
    fn a_slot_has_the_rules_that_nft_would_load() {
        let limits = Limits { packets: 1234, ..Limits::default() };
        let (by_nft, by_us) = (Netns::unnamed().unwrap(), Netns::unnamed().unwrap());
        let _taps = [&by_nft, &by_us].map(|netns| netns.run(tap::open).unwrap());
        by_nft.run(|| nft::load(&rules::ruleset(&limits)).map_err(io::Error::other)).unwrap();

        Firewall::open(&by_us).unwrap().load(&Ruleset::translate(&limits).unwrap()).unwrap();
        let listed_by_nft = listed(&by_nft);
        assert!(listed_by_nft.contains("limit rate over 1234/second") && listed_by_nft.lines().count() > 400);
        assert_eq!(listed(&by_us), listed_by_nft);
    }

    #[test]
    fn a_slot_that_has_rules_keeps_them_as_they_are() {
        let netns = Netns::unnamed().unwrap();
        let _tap = netns.run(tap::open).unwrap();
        let rules = Ruleset::translate(&Limits::default()).unwrap();
        Firewall::open(&netns).unwrap().load(&rules).unwrap();
        let before = listed(&netns);
        let error = Firewall::open(&netns).unwrap().load(&rules).unwrap_err();
        assert!(
            matches!(&error, FirewallError::Rules(source) if source.raw_os_error() == Some(libc::EEXIST)),
            "{error:?}"
        );
        assert_eq!(listed(&netns), before);
    }
}
