//! Netlink messages about nf_tables, byte by byte: written for the kernel, and read from it.
//!
//! A message is a header, `struct nfgenmsg`, and attributes: type, length, value, padded to four bytes, nested at will
//! (`linux/netlink.h`, `linux/netfilter/nfnetlink.h`). Numbers in attributes are big-endian.

/// `struct nlmsghdr`, and `struct nfgenmsg` behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// `struct nlattr`.
const ATTRIBUTE: usize = 4;
const NESTED: u16 = 1 << 15;
/// What of an attribute's type is the type: `NLA_TYPE_MASK`.
pub(super) const TYPE: u16 = 0x3fff;

/// Of a message: the type and flags of `struct nlmsghdr`, and the family and resource of `struct nfgenmsg`.
pub(super) struct Head {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) family: u8,
    pub(super) resource: u16,
}

/// Messages, one behind the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    /// Where the last message begins.
    last: usize,
    messages: u32,
}

impl Writer {
    pub(super) fn message(&mut self, head: &Head) {
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&head.kind.to_ne_bytes());
        self.bytes.extend_from_slice(&head.flags.to_ne_bytes());
        // The sequence number comes when the messages are sent; the port is the kernel's to fill in.
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(&[head.family, 0]);
        self.bytes.extend_from_slice(&head.resource.to_be_bytes());
        self.messages += 1;
        self.grow();
    }

    /// Adds an attribute to the last message.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest_as(kind, |writer| writer.bytes.extend_from_slice(value));
    }

    /// A text, which ends with a zero.
    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.nest_as(kind, |writer| {
            writer.bytes.extend_from_slice(text.as_bytes());
            writer.bytes.push(0);
        });
    }

    /// Adds an attribute that consists of attributes.
    pub(super) fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) {
        self.nest_as(kind | NESTED, inner);
    }

    fn nest_as(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        inner(self);
        // One that is too long for its length is cut off by the kernel's own check of it.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.grow();
    }

    /// Writes the length of the last message.
    fn grow(&mut self) {
        let length = u32::try_from(self.bytes.len() - self.last).unwrap_or(u32::MAX);
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Of the last message, so far.
    pub(super) fn length(&self) -> usize {
        self.bytes.len() - self.last
    }

    /// Adds to the flags of the last message.
    pub(super) fn flag(&mut self, flags: u16) {
        let at = self.last + 6;
        let before = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
        self.bytes[at..at + 2].copy_from_slice(&(before | flags).to_ne_bytes());
    }

    pub(super) fn messages(&self) -> u32 {
        self.messages
    }

    /// The messages, numbered from `first` on.
    pub(super) fn numbered(mut self, first: u32) -> Vec<u8> {
        let mut at = 0;
        for number in 0..self.messages {
            let length =
                u32::from_ne_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]]);
            self.bytes[at + 8..at + 12].copy_from_slice(&first.wrapping_add(number).to_ne_bytes());
            at += length as usize;
        }
        self.bytes
    }
}

/// A message from the kernel.
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// What follows `struct nlmsghdr`.
    pub(super) payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// That of `struct nfgenmsg`.
    pub(super) fn family(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// Those behind `struct nfgenmsg`.
    pub(super) fn attributes(&self) -> Attributes<'a> {
        Attributes(self.payload.get(GENERIC..).unwrap_or_default())
    }

    /// The number that acknowledgements, errors and the ends of dumps begin with: 0, or an errno with a minus sign.
    pub(super) fn status(&self) -> Option<i32> {
        Some(i32::from_ne_bytes(*self.payload.first_chunk()?))
    }
}

/// The messages of one datagram. Ends early where one does not make sense.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
        let message = Message {
            kind: u16::from_ne_bytes(*datagram.get(4..)?.first_chunk()?),
            flags: u16::from_ne_bytes(*datagram.get(6..)?.first_chunk()?),
            sequence: u32::from_ne_bytes(*datagram.get(8..)?.first_chunk()?),
            payload: datagram.get(HEADER..length)?,
        };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Attributes: types, and values. Ends early where one does not make sense.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Those that a value consists of.
    pub(super) fn of(value: &'a [u8]) -> Self {
        Self(value)
    }

    /// The value of the first one of this type.
    pub(super) fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find_map(|(found, value)| (found == kind).then_some(value))
    }

    /// The attributes within the first one of this type.
    pub(super) fn within(self, kind: u16) -> Option<Attributes<'a>> {
        self.find(kind).map(Attributes)
    }

    pub(super) fn number(self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(*self.find(kind)?.first_chunk()?))
    }

    pub(super) fn text(self, kind: u16) -> Option<&'a str> {
        std::ffi::CStr::from_bytes_until_nul(self.find(kind)?).ok()?.to_str().ok()
    }

    /// Types with their flags, and values: to be written as they are.
    pub(super) fn raw(mut self) -> impl Iterator<Item = (u16, &'a [u8])> {
        std::iter::from_fn(move || self.take_first())
    }

    fn take_first(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16::from_ne_bytes(*self.0.first_chunk()?));
        let kind = u16::from_ne_bytes(*self.0.get(2..)?.first_chunk()?);
        let value = self.0.get(ATTRIBUTE..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }

    /// As many attributes as there are, each of which consists of attributes.
    pub(super) fn lists(self) -> impl Iterator<Item = Attributes<'a>> {
        self.map(|(_, value)| Attributes(value))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.take_first().map(|(kind, value)| (kind & TYPE, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: Head = Head { kind: 0x0a0c, flags: 5, family: 1, resource: 0 };

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::default();
        writer.message(&Head { kind: 16, flags: 1, family: 0, resource: 10 });
        writer.message(&HEAD);
        writer.text(1, "sandpiper");
        writer.nest(3, |writer| {
            writer.nest(1, |writer| writer.attribute(4, &7_u64.to_be_bytes()));
            writer.nest(1, |writer| writer.attribute(4, &8_u64.to_be_bytes()));
        });
        writer.flag(0x400);
        assert_eq!(writer.messages(), 2);
        let bytes = writer.numbered(u32::MAX);

        let read: Vec<_> = messages(&bytes).collect();
        assert_eq!(read.iter().map(|message| message.kind).collect::<Vec<_>>(), [16, 0x0a0c]);
        assert_eq!(read.iter().map(|message| message.sequence).collect::<Vec<_>>(), [u32::MAX, 0]);
        assert_eq!(read[0].payload, [0, 0, 0, 10]);
        assert_eq!(read[1].flags, 0x405);
        assert_eq!(read[1].attributes().text(1), Some("sandpiper"));
        let lists = read[1].attributes().within(3).unwrap().lists();
        assert_eq!(lists.map(|list| list.number(4)).collect::<Vec<_>>(), [Some(7), Some(8)]);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange_to_be_read(bytes: Vec<u8>) {
            for message in messages(&bytes) {
                message.status();
                for list in message.attributes().lists() {
                    list.number(1);
                    list.text(2);
                }
            }
        }
    }
}
