//! Bytes, credit, and the pace of a slow reader.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;

use nix::sys::socket::{MsgFlags, recv};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::IntoBytes;

use super::super::credit::BUF_ALLOC;
use super::super::muxer::MAX_BACKLOG;
use super::super::packet::op;
use super::driver::{GUEST_BUFFER, Guest};
use super::{Fixture, assert_at_end, event_loop, pattern, poll_until};
use crate::devices::virtio::Next;

const LARGE: usize = 20 << 20;
const PACKET: usize = 64 * 1024;

/// The guest's side of one connection's flow control, as sender.
#[derive(Default)]
struct Sender {
    sent: u32,
    buf_alloc: u32,
    fwd_cnt: u32,
}

impl Sender {
    /// Sends `data` as fast as the device's credit allows.
    fn send(&mut self, fixture: &mut Fixture, port: u32, data: &[u8]) {
        let mut left = data;
        while !left.is_empty() {
            let held = self.sent.wrapping_sub(self.fwd_cnt);
            let count = (self.buf_alloc - held) as usize;
            if count == 0 {
                self.update(fixture);
                continue;
            }
            let (now, later) = left.split_at(left.len().min(PACKET).min(count));
            fixture.guest.send(port, 80, op::RW, 0, now);
            self.sent = self.sent.wrapping_add(u32::try_from(now.len()).expect("a packet"));
            left = later;
        }
    }

    fn update(&mut self, fixture: &mut Fixture) {
        let packet = fixture.guest.receive_op(op::CREDIT_UPDATE);
        self.buf_alloc = packet.header.buf_alloc.get();
        self.fwd_cnt = packet.header.fwd_cnt.get();
    }
}

fn sender() -> Sender {
    Sender { buf_alloc: BUF_ALLOC, ..Sender::default() }
}

#[test]
fn slow_readers_together_are_kept_from_taking_all_memory_and_others_go_on() {
    let mut fixture = Fixture::new();
    // What all of them may have waiting is four times what the device keeps.
    let slow: Vec<_> = (0..4 * MAX_BACKLOG / BUF_ALLOC as usize).map(|_| fixture.connected(80)).collect();
    let (mut prompt, prompt_port) = fixture.connected(80);
    for (_, port) in &slow {
        for _ in 0..BUF_ALLOC as usize / PACKET {
            fixture.guest.send(*port, 80, op::RW, 0, &[1; PACKET]);
        }
    }

    let reset = fixture.guest.receive_other_than(&[op::CREDIT_UPDATE]);
    assert_eq!(reset.op(), op::RST);
    assert!(slow.iter().any(|(_, port)| *port == reset.header.src_port.get()));
    fixture.guest.send(prompt_port, 80, op::RW, 0, b"heard");
    let mut heard = [0; 5];
    prompt.read_exact(&mut heard).expect("data");
    assert_eq!(&heard, b"heard");
    // Of the late ones, little waits in the kernel either.
    let (late, _) = slow.last().expect("many");
    let waiting = recv(late.as_raw_fd(), &mut vec![0; 1 << 20], MsgFlags::MSG_PEEK).expect("data");
    assert!(waiting < PACKET, "{waiting} bytes");
}

#[test]
fn a_large_transfer_to_the_host_arrives_unchanged() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let sent = pattern(LARGE);
    let reader = thread::spawn(move || {
        let mut received = vec![0; LARGE];
        client.read_exact(&mut received).expect("all bytes in time");
        received
    });

    sender().send(&mut fixture, port, &sent);

    assert!(reader.join().expect("the reader ends") == sent);
}

#[test]
fn a_large_transfer_to_the_guest_arrives_unchanged_and_within_its_credit() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let sent = pattern(LARGE);
    let written = sent.clone();
    let writer = thread::spawn(move || client.write_all(&written).map(|()| client));

    let mut received = Vec::with_capacity(LARGE);
    let mut told = 0;
    while received.len() < LARGE {
        let packet = fixture.guest.receive_other_than(&[op::CREDIT_REQUEST, op::CREDIT_UPDATE]);
        assert_eq!(packet.op(), op::RW);
        received.extend_from_slice(&packet.data);
        assert!(received.len() - told <= GUEST_BUFFER as usize);
        if received.len() - told >= GUEST_BUFFER as usize / 2 {
            told = received.len();
            fixture.guest.fwd_cnt = u32::try_from(told).expect("less than 4 GiB");
            fixture.guest.send(port, 80, op::CREDIT_UPDATE, 0, &[]);
        }
    }

    writer.join().expect("the writer ends").expect("every byte was taken");
    assert!(received == sent);
}

#[test]
fn both_directions_at_once_do_not_hinder_each_other() {
    let mut fixture = Fixture::new();
    let (mut one, one_port) = fixture.connected(80);
    let mut two = fixture.connected(80).0;
    let sent = pattern(4 << 20);
    two.set_nonblocking(true).expect("a flag");
    // The guest grants no more than its buffer for this one, so it is stuck half-way.
    fill(&mut two, &sent);
    let reader = thread::spawn(move || {
        let mut received = vec![0; 4 << 20];
        one.read_exact(&mut received).expect("all bytes in time");
        received
    });

    let mut sender = sender();
    for chunk in sent.chunks(PACKET) {
        while sender.buf_alloc - sender.sent.wrapping_sub(sender.fwd_cnt) < BUF_ALLOC / 4 {
            let packet = fixture.guest.receive_other_than(&[op::RW, op::CREDIT_REQUEST]);
            assert_eq!(packet.op(), op::CREDIT_UPDATE);
            sender.fwd_cnt = packet.header.fwd_cnt.get();
        }
        sender.send(&mut fixture, one_port, chunk);
    }

    assert!(reader.join().expect("the reader ends") == sent);
}

/// Writes until the socket takes no more, and returns how much it took.
fn fill(stream: &mut UnixStream, bytes: &[u8]) -> usize {
    let mut taken = 0;
    while taken < bytes.len() {
        match stream.write(&bytes[taken..]) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    taken
}

#[test]
fn a_reader_that_does_not_read_stops_the_guest_and_loses_nothing() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let sent = pattern(BUF_ALLOC as usize);
    let mut sender = sender();

    // The first of these fill the host's socket, then the device's own buffer: only then does credit stay away.
    let mut total = 0;
    while sender.buf_alloc - sender.sent.wrapping_sub(sender.fwd_cnt) > 0 {
        let count = (sender.buf_alloc - sender.sent.wrapping_sub(sender.fwd_cnt)) as usize;
        let count = count.min(PACKET);
        let at = total % sent.len();
        sender.send(&mut fixture, port, &sent[at..][..count.min(sent.len() - at)]);
        total += count.min(sent.len() - at);
        // A request is answered with the credit as it is.
        fixture.guest.send(port, 80, op::CREDIT_REQUEST, 0, &[]);
        sender.update(&mut fixture);
        while let Some(packet) = fixture.guest.poll() {
            sender.fwd_cnt = packet.header.fwd_cnt.get();
        }
    }
    assert!(total >= BUF_ALLOC as usize);

    let mut received = vec![0; total];
    client.read_exact(&mut received).expect("all bytes in time");
    let expected: Vec<u8> = sent.iter().copied().cycle().take(total).collect();
    assert!(received == expected);
    while sender.fwd_cnt != sender.sent {
        fixture.guest.send(port, 80, op::CREDIT_REQUEST, 0, &[]);
        sender.update(&mut fixture);
    }
}

#[test]
fn a_guest_that_exceeds_its_credit_is_reset() {
    let mut fixture = Fixture::new();
    let (client, port) = fixture.connected(80);

    let block = pattern(PACKET);
    let reset = loop {
        fixture.guest.send(port, 80, op::RW, 0, &block);
        if let Some(packet) = fixture.guest.poll().filter(|packet| packet.op() == op::RST) {
            break packet;
        }
    };

    assert_eq!(reset.header.src_port.get(), port);
    drop(client);
}

#[test]
fn nothing_is_sent_to_a_guest_without_credit_until_it_grants_some() {
    let mut fixture = Fixture::new();
    fixture.guest.buf_alloc = 0;
    let (mut client, port) = fixture.connected(80);
    client.write_all(b"0123456789").expect("room for ten bytes");

    fixture.guest.receive_op(op::CREDIT_REQUEST);
    fixture.guest.buf_alloc = 4;
    fixture.guest.send(port, 80, op::CREDIT_UPDATE, 0, &[]);
    assert_eq!(fixture.guest.receive_op(op::RW).data, b"0123");

    fixture.guest.receive_op(op::CREDIT_REQUEST);
    fixture.guest.fwd_cnt = 4;
    fixture.guest.buf_alloc = 100;
    fixture.guest.send(port, 80, op::CREDIT_UPDATE, 0, &[]);
    assert_eq!(fixture.guest.receive_op(op::RW).data, b"456789");
}

#[test]
fn a_packet_in_many_buffers_is_put_together() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let data = pattern(40_000);
    let header = fixture.guest.header(port, 80, op::RW, 0, data.len());

    fixture.guest.send_raw(&header, &data, &[1, 4095, 4096, 20_000, 11_808]);

    let mut received = vec![0; data.len()];
    client.read_exact(&mut received).expect("all bytes in time");
    assert!(received == data);
}

#[test]
fn data_for_a_host_end_that_is_gone_is_dropped_and_the_guest_told() {
    let mut fixture = Fixture::new();
    let (client, port) = fixture.connected(80);

    drop(client);
    fixture.guest.send(port, 80, op::RW, 0, b"too late");

    let told = fixture.guest.receive_op(op::SHUTDOWN);
    assert_eq!(told.header.src_port.get(), port);
}

#[test]
fn a_connection_without_data_does_not_keep_others_waiting() {
    let mut fixture = Fixture::new();
    let (mut busy, _) = fixture.connected(80);
    let (mut idle, idle_port) = fixture.connected(80);
    busy.set_nonblocking(true).expect("a flag");
    fill(&mut busy, &pattern(1 << 20));

    idle.write_all(b"now").expect("room for three bytes");

    let mut found = false;
    while !found {
        let packet = fixture.guest.receive();
        found = packet.header.src_port.get() == idle_port && packet.data == b"now";
    }
    drop(busy);
    fixture.guest.send(idle_port, 80, op::RST, 0, &[]);
    assert_at_end(&mut idle);
}

#[test]
fn a_client_whose_data_the_guest_cannot_take_costs_no_time() {
    let mut guest = Guest::new();
    guest.buf_alloc = 0;
    let (mut event_loop, socket) = event_loop(&guest);
    let mut client = UnixStream::connect(&socket.path).expect("the listener accepts");
    client.write_all(b"CONNECT 80\n").expect("room for a line");
    let request = poll_until(&mut event_loop, &mut guest, op::REQUEST);
    let response = guest.header(request.header.src_port.get(), 80, op::RESPONSE, 0, 0);
    guest.memory.write_slice(response.as_bytes(), GuestAddress(0x40_0000)).expect("in memory");
    assert!(guest.try_post(0x40_0000));
    client.write_all(b"data").expect("room for four bytes");

    poll_until(&mut event_loop, &mut guest, op::CREDIT_REQUEST);
    // What the guest's last notifications caused.
    for _ in 0..3 {
        event_loop.poll().expect("a device that goes on");
    }

    assert_ne!(event_loop.poll().expect("a device that goes on"), Next::Now);
    assert!(guest.poll().is_none());
}
