//! A guest that does not keep to the rules.

use std::os::unix::net::UnixStream;

use sandpiper_protocol::guest::{GUEST_CID, LINK_PORT};
use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;
use vm_memory::{Bytes, GuestAddress};
use zerocopy::IntoBytes;

use super::super::Service;
use super::super::packet::{HEADER_LEN, Header, SHUTDOWN_SEND, op};
use super::driver::{Guest, QUEUE_SIZE};
use super::{Fixture, TIMEOUT, assert_at_end, event_loop, ports};
use crate::devices::virtio::{EventLoop, Next};

/// A port that no connection uses.
const NOWHERE: u32 = 4242;

/// What a header is answered with: the type of the `RST`, or nothing.
fn answer(change: impl Fn(&mut Header)) -> Option<u16> {
    let mut fixture = Fixture::new();
    let mut header = fixture.guest.header(NOWHERE, 80, op::RW, 0, 0);
    change(&mut header);
    fixture.guest.send_raw(&header, &[], &[]);
    // Answers come in order, and this one comes for sure.
    fixture.guest.send(NOWHERE + 1, 81, op::RW, 0, &[]);
    let first = fixture.guest.receive_op(op::RST);
    (first.header.dst_port != 81).then(|| {
        assert_eq!(ports(&first), (header.dst_port.get(), header.src_port.get()));
        first.header.kind.get()
    })
}

#[test]
fn packets_to_nowhere_are_reset() {
    assert_eq!(answer(|_| {}), Some(1));
    for op in [0, op::RESPONSE, op::SHUTDOWN, op::RW, op::CREDIT_UPDATE, op::CREDIT_REQUEST, 8, u16::MAX] {
        assert_eq!(answer(|header| header.op = op.into()), Some(1), "operation {op}");
    }
}

#[test]
fn a_reset_to_nowhere_is_not_answered() {
    assert_eq!(answer(|header| header.op = op::RST.into()), None);
}

#[test]
fn sockets_of_another_type_are_reset_as_that_type() {
    for kind in [0, 2, 3, u16::MAX] {
        assert_eq!(answer(|header| header.kind = kind.into()), Some(kind), "type {kind}");
    }
}

#[test]
fn packets_from_or_to_anyone_else_are_dropped() {
    for cid in [0, 1, 2, 4, u64::from(u32::MAX), u64::MAX, u64::from(GUEST_CID) | 1 << 32] {
        assert_eq!(answer(|header| header.src_cid = cid.into()), None, "from {cid}");
    }
    for cid in [0, 1, 3, u64::MAX, 2 | 1 << 32] {
        assert_eq!(answer(|header| header.dst_cid = cid.into()), None, "to {cid}");
    }
}

/// What an established connection does with a packet: true if it is reset and the client closed.
fn is_reset_by(op: u16, flags: u32, len: u32, data: &[u8]) -> bool {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let header = Header { len: len.into(), ..fixture.guest.header(port, 80, op, flags, 0) };
    fixture.guest.send_raw(&header, data, &[data.len()]);
    fixture.guest.send(NOWHERE, 81, op::RW, 0, &[]);
    let reset = fixture.guest.receive_op(op::RST);
    if reset.header.dst_port == 81 {
        return false;
    }
    assert_eq!(ports(&reset), (port, 80));
    assert_at_end(&mut client);
    true
}

#[test]
fn a_connection_is_reset_by_what_makes_no_sense_on_it() {
    assert!(is_reset_by(op::REQUEST, 0, 0, &[]));
    assert!(is_reset_by(op::RESPONSE, 0, 0, &[]));
    assert!(is_reset_by(0, 0, 0, &[]));
    assert!(is_reset_by(99, 0, 0, &[]));
    // More data than there is, and more than anyone may send.
    assert!(is_reset_by(op::RW, 0, 5, b"four"));
    assert!(is_reset_by(op::RW, 0, u32::MAX, b"four"));
}

#[test]
fn a_connection_survives_what_is_only_odd() {
    assert!(!is_reset_by(op::RW, 0, 0, &[]));
    assert!(!is_reset_by(op::RW, u32::MAX, 3, b"longer than it says"));
    assert!(!is_reset_by(op::SHUTDOWN, 0, 0, &[]));
    assert!(!is_reset_by(op::SHUTDOWN, 0xffff_fff0, 0, &[]));
    assert!(!is_reset_by(op::CREDIT_UPDATE, u32::MAX, u32::MAX, &[]));
}

#[test]
fn data_after_the_end_of_data_is_reset() {
    let mut fixture = Fixture::new();
    let (_client, port) = fixture.connected(80);

    fixture.guest.send(port, 80, op::SHUTDOWN, SHUTDOWN_SEND, &[]);
    fixture.guest.send(port, 80, op::RW, 0, b"more");

    fixture.guest.receive_op(op::RST);
}

#[test]
fn data_before_the_response_is_reset() {
    let mut fixture = Fixture::new();
    let mut client = fixture.client(80);
    let request = fixture.guest.receive_op(op::REQUEST);

    fixture.guest.reply(&request, op::RW, 0);

    fixture.guest.receive_op(op::RST);
    assert_at_end(&mut client);
}

#[test]
fn chains_that_are_no_packets_are_handed_back_and_nothing_else_suffers() {
    let mut fixture = Fixture::new();
    let header_len = u32::try_from(HEADER_LEN).expect("small");
    let many: Vec<(u64, u32)> = (0..u64::from(QUEUE_SIZE)).map(|at| (0x40_0000 + at * 64, 1)).collect();

    fixture.guest.send_chain(&[(0x40_0000, header_len - 1)], 0);
    fixture.guest.send_chain(&[(0x40_0000, 0)], 0);
    fixture.guest.send_chain(&[(0x40_0000, header_len)], VRING_DESC_F_WRITE);
    fixture.guest.send_chain(&[(u64::MAX - 8, header_len)], 0);
    fixture.guest.send_chain(&[(0xffff_0000_0000, u32::MAX)], 0);
    fixture.guest.send_chain(&[(0x40_0000, header_len), (0x40_0000, u32::MAX)], 0);
    fixture.guest.send_chain(&many, 0);

    fixture.connected(80);
}

#[test]
fn a_chain_that_does_not_end_is_handed_back() {
    let mut fixture = Fixture::new();
    // Two descriptors that follow each other for ever.
    for (index, next) in [(0_u64, 1_u16), (1, 0)] {
        let descriptor = virtio_queue::desc::split::Descriptor::new(0x40_0000, 8, 1, next);
        let raw = virtio_queue::desc::RawDescriptor::from(descriptor);
        fixture.guest.memory.write_obj(raw, GuestAddress(0x2_0000 + index * 16)).expect("in memory");
    }

    fixture.guest.transmit.publish(&fixture.guest.memory, 0);

    fixture.connected_without_transmit_accounting();
}

impl Fixture {
    /// The device still works, shown by a request that comes through.
    fn connected_without_transmit_accounting(&mut self) {
        let _client = self.client(80);
        self.guest.receive_op(op::REQUEST);
    }
}

#[test]
fn a_queue_that_cannot_be_is_left_alone_until_the_reset() {
    let mut fixture = Fixture::new();
    let (mut client, _) = fixture.connected(80);

    fixture.guest.transmit.set_available(&fixture.guest.memory, 30_000);

    fixture.guest.wait_for_needs_reset();
    assert_at_end(&mut client);
    let mut refused = UnixStream::connect(&fixture.socket).expect("the listener accepts");
    refused.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    assert_at_end(&mut refused);
}

#[test]
fn a_head_outside_the_table_breaks_the_queue() {
    let mut fixture = Fixture::new();

    fixture.guest.transmit.publish(&fixture.guest.memory, QUEUE_SIZE);

    fixture.guest.wait_for_needs_reset();
}

#[test]
fn a_guest_that_sends_and_never_receives_is_not_listened_to_any_more() {
    let mut guest = Guest::new();
    // As if no buffer had been posted.
    guest.receive.set_available(&guest.memory, 0);
    let (mut event_loop, _socket) = event_loop(&guest);
    let header = guest.header(NOWHERE, 80, op::RW, 0, 0);
    guest.memory.write_slice(header.as_bytes(), GuestAddress(0x40_0000)).expect("in memory");

    let mut taken = 0;
    for _ in 0..64 {
        taken += guest.post_and_count(&mut event_loop, 0x40_0000);
    }

    // As many replies as the device keeps, and not one more. It waits for buffers, and does not ask for them in a loop.
    assert_eq!(taken, 256);
    assert_ne!(event_loop.poll().expect("a device that goes on"), Next::Now);
}

impl Guest {
    /// Posts as many headers as there is room for, polls the device, and counts what it took.
    fn post_and_count(&mut self, event_loop: &mut EventLoop<Service>, at: u64) -> usize {
        while self.try_post(at) {}
        event_loop.poll().expect("a device that goes on");
        let mut taken = 0;
        while self.reclaim() {
            taken += 1;
        }
        taken
    }
}

#[test]
fn random_packets_and_random_rings_never_stop_the_device() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..50 {
        let mut guest = Guest::new();
        let (mut event_loop, _socket) = event_loop(&guest);
        for step in 0..200 {
            let pick = |from: &[u32], at: u64| from[usize::try_from(at).unwrap_or(0) % from.len()];
            let host_port = pick(&[LINK_PORT, 22, 1 << 30], next());
            let guest_port = pick(&[1, 2, 1000, 80, 5000], next() >> 3);
            let mut header = guest.header(host_port, guest_port, 0, pick(&[0, 1, 2, 3], next() >> 5), 0);
            header.op = u16::try_from(next() % 9).expect("small").into();
            header.len = pick(&[0, 1, 100, 5000, 70_000, u32::MAX], next() >> 7).into();
            header.buf_alloc = pick(&[0, 10, 65536, u32::MAX], next() >> 9).into();
            header.fwd_cnt = pick(&[0, 1, 100, u32::MAX], next() >> 11).into();
            guest.memory.write_slice(header.as_bytes(), GuestAddress(0x40_0000)).expect("in memory");
            guest.try_post(0x40_0000);
            if step % 50 == 49 {
                // Descriptors and rings at random, too.
                let at = 0x1_0000 + next() % 0x1_3000;
                guest.memory.write_obj(next(), GuestAddress(at)).expect("in memory");
            }
            event_loop.poll().expect("a device that goes on");
        }
    }
}
