//! What the firewall tells about what it did not let pass, and how much it did.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_protocol::interval::Bytes;

use super::batch::{
    DUMP, ELEMENT_KEY, GET_ELEMENTS, GET_OBJECT, INET, LIST_ELEMENTS, LIST_SET, LIST_TABLE, NETDEV, NEW_ELEMENTS,
    REQUEST, TABLE, VALUE,
};
use super::elements::MARKED;
use super::rules::DENIED_LIFE;
use super::socket::Socket;
use super::wire::{Attributes, Head, Message, Writer};

/// `NFTA_SET_ELEM_*`, `NFTA_EXPR_*`, `NFTA_COUNTER_*` and `NFTA_OBJ_*` of `linux/netfilter/nf_tables.h`.
const ELEMENT_EXPIRATION: u16 = 5;
const ELEMENT_EXPRESSION: u16 = 7;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_DATA: u16 = 4;

const SETS: [&str; 2] = ["denied4", "denied6"];
const CURRENT: &str = "current";
const GUEST: &str = "guest";
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A destination that the policy denied, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedPacket {
    /// The protocol's number, as in an IP header.
    pub protocol: u8,
    pub address: IpAddr,
    /// Of TCP and UDP.
    pub port: Option<u16>,
    /// Packets since the destination is remembered, which it is until an hour after the last one.
    pub count: u64,
    /// Of the last packet.
    pub time: Timestamp,
}

/// Packets and frames that did not pass since the slot was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The policy denied them.
    pub policy: u64,
    /// Frames that are not IP or ARP, or not from the guest's own addresses, and attempts to change the slot's routes.
    pub spoofed: u64,
    /// More than the limits allow.
    pub limited: u64,
}

/// In no particular order.
pub(super) fn denied(socket: &Socket) -> std::io::Result<Vec<DeniedPacket>> {
    let mut all = Vec::new();
    for set in SETS {
        all.extend(elements(socket, INET, set, packet)?);
    }
    Ok(all)
}

/// The generation of the policy that is in force, without the bit that every mark has.
pub(super) fn generation(socket: &Socket) -> std::io::Result<Option<u32>> {
    let mark =
        |element: Attributes<'_>| Some(u32::from_ne_bytes(*element.within(ELEMENT_KEY)?.find(VALUE)?.first_chunk()?));
    Ok(elements(socket, INET, CURRENT, mark)?.first().map(|mark| mark & !MARKED))
}

/// Which Ethernet address the guest has that may speak.
pub(super) fn guest(socket: &Socket) -> std::io::Result<Option<[u8; 6]>> {
    let mac = |element: Attributes<'_>| element.within(ELEMENT_KEY)?.find(VALUE)?.first_chunk().copied();
    Ok(elements(socket, NETDEV, GUEST, mac)?.first().copied())
}

/// What there is in a set of the table of a family, as far as `read` knows what to make of it.
fn elements<T>(
    socket: &Socket,
    family: u8,
    set: &str,
    read: impl Fn(Attributes<'_>) -> Option<T>,
) -> std::io::Result<Vec<T>> {
    let head = Head { kind: GET_ELEMENTS, flags: REQUEST | DUMP, family, resource: 0 };
    let which = |writer: &mut Writer| {
        writer.text(LIST_TABLE, TABLE);
        writer.text(LIST_SET, set);
    };
    socket.dump(&head, which, |message, found| {
        let elements = Some(message).filter(|message| message.kind == NEW_ELEMENTS);
        let elements = elements.and_then(|message| message.attributes().within(LIST_ELEMENTS));
        found.extend(elements.into_iter().flat_map(Attributes::lists).filter_map(&read));
    })
}

/// An element of the set of denied destinations: an address, a protocol and a port, each padded to four bytes.
fn packet(element: Attributes<'_>) -> Option<DeniedPacket> {
    let key = element.within(ELEMENT_KEY)?.find(VALUE)?;
    let (address, rest) = match key.len() {
        12 => (IpAddr::from(*key.first_chunk::<4>()?), key.get(4..)?),
        _ => (IpAddr::from(*key.first_chunk::<16>()?), key.get(16..)?),
    };
    let protocol = *rest.first()?;
    let port = u16::from_be_bytes(*rest.get(4..)?.first_chunk()?);
    let left = Duration::from_millis(element.number(ELEMENT_EXPIRATION)?);
    // Read after the kernel said what is left: a wait between the two makes a packet later, never earlier than it was.
    let now = Timestamp::now();
    Some(DeniedPacket {
        protocol,
        address,
        port: matches!(protocol, TCP | UDP).then_some(port),
        count: element.within(ELEMENT_EXPRESSION)?.within(EXPRESSION_DATA)?.number(COUNTER_PACKETS)?,
        time: now.checked_sub(DENIED_LIFE.saturating_sub(left)).unwrap_or(now),
    })
}

pub(super) fn totals(socket: &Socket) -> std::io::Result<Totals> {
    let mut totals = Totals::default();
    for family in [INET, NETDEV] {
        for Counter { name, packets, .. } in counters(socket, family)? {
            match name.as_str() {
                "denied" => totals.policy += packets,
                "spoofed" => totals.spoofed += packets,
                "limited" => totals.limited += packets,
                _ => {}
            }
        }
    }
    Ok(totals)
}

/// Bytes of the packets that were forwarded; nothing where the rules are of an agent that did not count them.
pub(super) fn forwarded(socket: &Socket) -> std::io::Result<Option<Bytes>> {
    let counters = counters(socket, INET)?;
    let bytes = |name: &str| counters.iter().find(|counter| counter.name == name).map(|counter| counter.bytes);
    Ok(bytes("sent").zip(bytes("received")).map(|(egress, ingress)| Bytes { egress, ingress }))
}

/// A counter that has a name.
struct Counter {
    name: String,
    packets: u64,
    bytes: u64,
}

/// Those of one of the slot's tables.
fn counters(socket: &Socket, family: u8) -> std::io::Result<Vec<Counter>> {
    let head = Head { kind: GET_OBJECT, flags: REQUEST | DUMP, family, resource: 0 };
    let which = |writer: &mut Writer| writer.text(OBJECT_TABLE, TABLE);
    socket.dump(&head, which, |message, found| found.extend(counter(message)))
}

fn counter(message: &Message<'_>) -> Option<Counter> {
    let attributes = message.attributes();
    let data = attributes.within(OBJECT_DATA)?;
    Some(Counter {
        name: attributes.text(OBJECT_NAME)?.to_owned(),
        packets: data.number(COUNTER_PACKETS)?,
        bytes: data.number(COUNTER_BYTES)?,
    })
}
