//! Changes to sets, as one transaction: the kernel makes all of them at once, or none.

use std::net::IpAddr;
use std::time::Duration;

use super::wire::{Head, Writer};

/// A message of the batch ends here, far below the 64 KiB that an attribute can hold.
const MESSAGE: usize = 32 * 1024;

pub(super) const TABLE: &str = "sandpiper";
/// Families of tables: `NFPROTO_*`.
pub(super) const INET: u8 = 1;
pub(super) const NETDEV: u8 = 5;

/// `NFNL_SUBSYS_NFTABLES`; the upper half of the types of its messages.
const SUBSYSTEM: u16 = 10;
pub(super) const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub(super) const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
pub(super) const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
pub(super) const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
pub(super) const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
pub(super) const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
pub(super) const NEW_SET: u16 = SUBSYSTEM << 8 | 9;
pub(super) const GET_SET: u16 = SUBSYSTEM << 8 | 10;
pub(super) const NEW_ELEMENTS: u16 = SUBSYSTEM << 8 | 12;
pub(super) const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | 13;
const DELETE_ELEMENTS: u16 = SUBSYSTEM << 8 | 14;
pub(super) const NEW_OBJECT: u16 = SUBSYSTEM << 8 | 18;
pub(super) const GET_OBJECT: u16 = SUBSYSTEM << 8 | 19;
const BEGIN: u16 = 16;
const END: u16 = 17;

pub(super) const REQUEST: u16 = 0x01;
const ACKNOWLEDGE: u16 = 0x04;
pub(super) const DUMP: u16 = 0x300;
pub(super) const EXCLUSIVE: u16 = 0x200;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;

/// `NFTA_SET_ELEM_LIST_*`, `NFTA_LIST_ELEM`, `NFTA_SET_ELEM_*`, `NFTA_DATA_VALUE` of `linux/netfilter/nf_tables.h`.
pub(super) const LIST_TABLE: u16 = 1;
pub(super) const LIST_SET: u16 = 2;
pub(super) const LIST_ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
pub(super) const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
pub(super) const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_TIMEOUT: u16 = 4;
const ELEMENT_KEY_END: u16 = 10;
pub(super) const VALUE: u16 = 1;
/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVAL_END: u32 = 1;

/// A set of one of the slot's tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Set {
    pub(super) family: u8,
    pub(super) name: &'static str,
}

/// What a set has elements by: an address, or several things behind each other, each padded to four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    bytes: [u8; Self::MOST],
    length: usize,
}

impl Key {
    /// An address of IPv6 and a port.
    const MOST: usize = 20;

    fn new(parts: &[&[u8]]) -> Self {
        let mut key = Self { bytes: [0; Self::MOST], length: 0 };
        for part in parts {
            key.bytes[key.length..key.length + part.len()].copy_from_slice(part);
            key.length += if parts.len() > 1 { part.len().next_multiple_of(4) } else { part.len() };
        }
        key
    }

    pub(super) fn address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::new(&[&address.octets()]),
            IpAddr::V6(address) => Self::new(&[&address.octets()]),
        }
    }

    pub(super) fn address_and_port(address: IpAddr, port: u16) -> Self {
        match address {
            IpAddr::V4(address) => Self::new(&[&address.octets(), &port.to_be_bytes()]),
            IpAddr::V6(address) => Self::new(&[&address.octets(), &port.to_be_bytes()]),
        }
    }

    /// A family of addresses, `NFPROTO_*`.
    pub(super) fn family(family: u8) -> Self {
        Self::new(&[&[family]])
    }

    /// A mark, or a group.
    pub(super) fn number(number: u32) -> Self {
        Self::new(&[&number.to_ne_bytes()])
    }

    pub(super) fn number_and_port(number: u32, port: u16) -> Self {
        Self::new(&[&number.to_ne_bytes(), &port.to_be_bytes()])
    }

    pub(super) fn mac(mac: [u8; 6]) -> Self {
        Self::new(&[&mac])
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// An element of a set or of a map.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    key: Key,
    until: Option<Key>,
    data: Option<Key>,
    interval_end: bool,
    life: Option<Duration>,
}

impl Element {
    pub(super) fn new(key: Key) -> Self {
        Self { key, until: None, data: None, interval_end: false, life: None }
    }

    /// With data, of a map.
    pub(super) fn with_data(key: Key, data: Option<Key>) -> Self {
        Self { data, ..Self::new(key) }
    }

    /// All from `first` to `last`, in a set whose keys have several parts.
    pub(super) fn between(first: Key, last: Key) -> Self {
        Self { until: Some(last), ..Self::new(first) }
    }

    /// In a set of intervals, the first key that is not in the interval that an element before begins.
    pub(super) fn interval_end(key: Key) -> Self {
        Self { interval_end: true, ..Self::new(key) }
    }

    pub(super) fn with_life(key: Key, life: Duration) -> Self {
        Self { life: Some(life), ..Self::new(key) }
    }

    fn write(&self, writer: &mut Writer) {
        writer.nest(ELEMENT_KEY, |writer| writer.attribute(VALUE, self.key.bytes()));
        if let Some(until) = self.until {
            writer.nest(ELEMENT_KEY_END, |writer| writer.attribute(VALUE, until.bytes()));
        }
        if let Some(data) = self.data {
            writer.nest(ELEMENT_DATA, |writer| writer.attribute(VALUE, data.bytes()));
        }
        if self.interval_end {
            writer.attribute(ELEMENT_FLAGS, &INTERVAL_END.to_be_bytes());
        }
        if let Some(life) = self.life {
            // Zero would be for ever.
            let milliseconds = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).max(1);
            writer.attribute(ELEMENT_TIMEOUT, &milliseconds.to_be_bytes());
        }
    }
}

#[cfg(test)]
impl Element {
    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn data(&self) -> Option<Key> {
        self.data
    }

    pub(super) fn ends_interval(&self) -> bool {
        self.interval_end
    }

    pub(super) fn life(&self) -> Option<Duration> {
        self.life
    }
}

/// Changes, in the order in which they are made.
pub(super) struct Batch {
    writer: Writer,
    /// The set that each change is about.
    sets: Vec<&'static str>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { writer: begin(), sets: Vec::new() }
    }

    /// Takes all elements out of a set.
    pub(super) fn flush(&mut self, set: Set) {
        self.change(DELETE_ELEMENTS, 0, set);
    }

    /// Puts elements into a set. One that is there already stays as it is, on most kernels.
    pub(super) fn add(&mut self, set: Set, elements: impl IntoIterator<Item = Element>) {
        self.elements(NEW_ELEMENTS, CREATE, set, elements);
    }

    /// Takes elements out of a set, which have to be there.
    pub(super) fn delete(&mut self, set: Set, elements: impl IntoIterator<Item = Element>) {
        self.elements(DELETE_ELEMENTS, 0, set, elements);
    }

    fn change(&mut self, kind: u16, flags: u16, set: Set) {
        self.writer.message(&Head { kind, flags: REQUEST | flags, family: set.family, resource: 0 });
        self.writer.text(LIST_TABLE, TABLE);
        self.writer.text(LIST_SET, set.name);
        self.sets.push(set.name);
    }

    fn elements(&mut self, kind: u16, flags: u16, set: Set, elements: impl IntoIterator<Item = Element>) {
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            self.change(kind, flags, set);
            self.writer.nest(LIST_ELEMENTS, |writer| {
                while writer.length() < MESSAGE
                    && let Some(element) = elements.next()
                {
                    writer.nest(ELEMENT, |writer| element.write(writer));
                }
            });
        }
    }

    /// The messages, and the set that each one between the first and the last is about.
    pub(super) fn finish(mut self) -> (Writer, Vec<&'static str>) {
        end(&mut self.writer);
        (self.writer, self.sets)
    }
}

/// Messages that are a transaction once it [ends](end).
pub(super) fn begin() -> Writer {
    let mut writer = Writer::default();
    writer.message(&Head { kind: BEGIN, flags: REQUEST, family: 0, resource: SUBSYSTEM });
    writer
}

/// Has the last message acknowledged, and all that were written so far done.
pub(super) fn end(writer: &mut Writer) {
    writer.flag(ACKNOWLEDGE);
    writer.message(&Head { kind: END, flags: REQUEST, family: 0, resource: SUBSYSTEM });
}
