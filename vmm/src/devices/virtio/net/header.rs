//! What stands before each frame, in both directions: which part of its checksum and of its segmentation is still to do.

use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_HDR_F_DATA_VALID, VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN, VIRTIO_NET_HDR_GSO_NONE,
    VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
};
use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::MIN_FRAME;

/// `struct virtio_net_hdr_v1`, virtio 1.2 section 5.1.6, which is also what a tap with headers of this length uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub(super) flags: u8,
    pub(super) gso_type: u8,
    /// How much of the frame is headers: a hint.
    pub(super) hdr_len: U16,
    pub(super) gso_size: U16,
    pub(super) csum_start: U16,
    pub(super) csum_offset: U16,
    /// How many receive buffers the frame fills.
    pub(super) num_buffers: U16,
}

pub(super) const HEADER_LEN: usize = size_of::<Header>();
const _: () = assert!(HEADER_LEN == 12);

/// Flags and types as the header has them, where the bindings have wider numbers.
pub(super) const NEEDS_CSUM: u8 = byte(VIRTIO_NET_HDR_F_NEEDS_CSUM);
pub(super) const DATA_VALID: u8 = byte(VIRTIO_NET_HDR_F_DATA_VALID);
pub(super) const NONE: u8 = byte(VIRTIO_NET_HDR_GSO_NONE);
pub(super) const TCP4: u8 = byte(VIRTIO_NET_HDR_GSO_TCPV4);
pub(super) const TCP6: u8 = byte(VIRTIO_NET_HDR_GSO_TCPV6);
pub(super) const ECN: u8 = byte(VIRTIO_NET_HDR_GSO_ECN);

#[expect(clippy::cast_possible_truncation, reason = "checked in the same function, when the program is compiled")]
const fn byte(value: u32) -> u8 {
    assert!(value <= 0xff);
    value as u8
}

/// What a driver has agreed to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offloads {
    to_host: Accepted,
    to_guest: Accepted,
}

/// Of one direction.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    checksum: bool,
    tcp4: bool,
    tcp6: bool,
    ecn: bool,
}

impl Accepted {
    /// From the bits of features, each of which is worth nothing without those that it requires (virtio 1.2 section
    /// 5.1.3.1).
    fn new(features: u64, [checksum, tcp4, tcp6, ecn]: [u32; 4]) -> Self {
        let has = |bit: u32| features & (1 << bit) != 0;
        let checksum = has(checksum);
        let (tcp4, tcp6) = (checksum && has(tcp4), checksum && has(tcp6));
        Self { checksum, tcp4, tcp6, ecn: (tcp4 || tcp6) && has(ecn) }
    }

    /// Whether frames may be of this type of segmentation.
    fn has_type(self, gso_type: u8) -> bool {
        let known = match gso_type & !ECN {
            NONE => gso_type == NONE,
            TCP4 => self.tcp4,
            TCP6 => self.tcp6,
            _ => false,
        };
        known && (self.ecn || gso_type & ECN == 0)
    }
}

impl Offloads {
    /// `features` are those that the driver accepted.
    pub(super) fn new(features: u64) -> Self {
        let to_host = [VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_ECN];
        let to_guest =
            [VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_ECN];
        Self { to_host: Accepted::new(features, to_host), to_guest: Accepted::new(features, to_guest) }
    }

    /// What the tap may leave undone, as it is to be told.
    pub(super) fn of_tap(self) -> libc::c_uint {
        let Accepted { checksum, tcp4, tcp6, ecn } = self.to_guest;
        let flag = |accepted: bool, flag: libc::c_uint| if accepted { flag } else { 0 };
        flag(checksum, libc::TUN_F_CSUM)
            | flag(tcp4, libc::TUN_F_TSO4)
            | flag(tcp6, libc::TUN_F_TSO6)
            | flag(ecn, libc::TUN_F_TSO_ECN)
    }

    /// What the tap is told of a frame of `length` bytes that the guest sends with `header`: what the driver agreed to and
    /// what lies within the frame, nothing else. `None` if that is not what it says.
    pub(super) fn for_tap(self, header: Header, length: usize) -> Option<Header> {
        let accepted = self.to_host;
        let needs_checksum = header.flags & NEEDS_CSUM != 0;
        if needs_checksum && !(accepted.checksum && has_checksum_within(&header, length))
            || !accepted.has_type(header.gso_type)
        {
            return None;
        }
        let mut checked = Header { hdr_len: clamp(header.hdr_len, length), ..Header::default() };
        if needs_checksum {
            checked.flags = NEEDS_CSUM;
            checked.csum_start = header.csum_start;
            checked.csum_offset = header.csum_offset;
        }
        if header.gso_type != NONE {
            // Every segment gets a checksum of its own, and there is an end to them.
            if !needs_checksum || header.gso_size == 0 {
                return None;
            }
            checked.gso_type = header.gso_type;
            checked.gso_size = header.gso_size;
        }
        Some(checked)
    }

    /// What the guest is told of a frame that the tap gave with `header`. `None` if it has not agreed to take one like
    /// that: such may wait in the tap from before the driver began.
    pub(super) fn for_guest(self, header: Header) -> Option<Header> {
        let accepted = self.to_guest;
        let needs_checksum = header.flags & NEEDS_CSUM != 0;
        if needs_checksum && !accepted.checksum || !accepted.has_type(header.gso_type) {
            return None;
        }
        let flags = if accepted.checksum { header.flags & (NEEDS_CSUM | DATA_VALID) } else { 0 };
        Some(Header { flags, ..header })
    }
}

/// Whether the checksum that is to be filled in, and all that it is made of, lie behind the Ethernet header and in the frame.
fn has_checksum_within(header: &Header, length: usize) -> bool {
    let start = usize::from(header.csum_start.get());
    let end = start + usize::from(header.csum_offset.get()) + 2;
    start >= MIN_FRAME && end <= length
}

fn clamp(hint: U16, length: usize) -> U16 {
    U16::new(u16::try_from(length).map_or(hint.get(), |length| hint.get().min(length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: u64 = u64::MAX;

    fn segments(gso_type: u8) -> Header {
        Header {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: 54.into(),
            gso_size: 1448.into(),
            csum_start: 34.into(),
            csum_offset: 16.into(),
            num_buffers: 0.into(),
        }
    }

    #[test]
    fn segments_pass_with_the_features_for_them_and_not_without() {
        let without = |bits: &[u32]| Offloads::new(bits.iter().fold(ALL, |features, bit| features & !(1 << bit)));
        let is_sent = |offloads: Offloads, gso_type| offloads.for_tap(segments(gso_type), 9000).is_some();
        let is_received = |offloads: Offloads, gso_type| offloads.for_guest(segments(gso_type)).is_some();
        let types = [TCP4, TCP6, TCP4 | ECN];

        assert_eq!(types.map(|kind| is_sent(without(&[]), kind)), [true; 3]);
        assert_eq!(types.map(|kind| is_sent(without(&[VIRTIO_NET_F_HOST_TSO4]), kind)), [false, true, false]);
        assert_eq!(types.map(|kind| is_sent(without(&[VIRTIO_NET_F_HOST_ECN]), kind)), [true, true, false]);
        assert_eq!(types.map(|kind| is_sent(without(&[VIRTIO_NET_F_CSUM]), kind)), [false; 3]);
        assert_eq!(types.map(|kind| is_received(without(&[VIRTIO_NET_F_GUEST_TSO6]), kind)), [true, false, true]);
        assert_eq!(types.map(|kind| is_received(without(&[VIRTIO_NET_F_GUEST_CSUM]), kind)), [false; 3]);
    }

    #[test]
    fn a_header_that_makes_no_sense_is_refused() {
        let offloads = Offloads::new(ALL);
        let refused = |change: fn(&mut Header)| {
            let mut header = segments(TCP4);
            change(&mut header);
            offloads.for_tap(header, 100).is_none()
        };
        assert!(!refused(|_| {}));
        assert!(refused(|header| header.gso_size = 0.into()));
        assert!(refused(|header| header.flags = 0));
        assert!(refused(|header| header.gso_type = ECN));
        // Fragments of UDP, UDP segments, tunnels.
        assert!(refused(|header| header.gso_type = 3));
        assert!(refused(|header| header.gso_type = 5));
        assert!(refused(|header| header.gso_type = TCP4 | 0x20));
        assert!(refused(|header| header.csum_start = 13.into()));
        assert!(refused(|header| header.csum_start = 83.into()));
        assert!(refused(|header| header.csum_offset = 65.into()));
        assert!(refused(|header| (header.csum_start, header.csum_offset) = (0xffff.into(), 0xffff.into())));
    }

    #[test]
    fn of_a_plain_frame_the_tap_hears_nothing_but_the_hint() {
        let header = Header {
            flags: 0xfe,
            hdr_len: 500.into(),
            csum_start: 9.into(),
            num_buffers: 7.into(),
            ..Header::default()
        };

        let checked = Offloads::new(ALL).for_tap(header, 60);

        assert_eq!(checked, Some(Header { hdr_len: 60.into(), ..Header::default() }));
    }

    #[test]
    fn a_driver_that_leaves_no_checksum_undone_hears_of_none() {
        let valid = Header { flags: DATA_VALID, ..Header::default() };
        assert_eq!(Offloads::new(0).for_guest(valid), Some(Header::default()));
        assert_eq!(Offloads::new(ALL).for_guest(valid), Some(valid));
        assert_eq!(Offloads::new(0).of_tap(), 0);
        assert_eq!(Offloads::new(ALL).of_tap(), 0xf);
        assert_eq!(Offloads::new(!(1 << VIRTIO_NET_F_GUEST_CSUM)).of_tap(), 0, "segments need checksums");
    }

    proptest! {
        #[test]
        fn what_the_tap_is_told_lies_within_the_frame(bytes: [u8; HEADER_LEN], length in MIN_FRAME..70_000, features: u64) {
            let header = Header::read_from_bytes(&bytes).expect("as long");
            if let Some(checked) = Offloads::new(features).for_tap(header, length) {
                prop_assert!(usize::from(checked.hdr_len.get()) <= length);
                let end = usize::from(checked.csum_start.get()) + usize::from(checked.csum_offset.get()) + 2;
                prop_assert!(checked.flags == 0 && checked.csum_start == 0 || checked.flags == NEEDS_CSUM && end <= length);
                prop_assert!(checked.gso_type == NONE && checked.gso_size == 0 || checked.flags == NEEDS_CSUM);
            }
        }
    }
}
