//! The many ways in which a connection ends.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::super::credit::BUF_ALLOC;
use super::super::packet::{SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};
use super::{Fixture, assert_at_end, pattern};

/// Sends more than the host's socket takes, so that some of it stays in the device.
fn overfill(fixture: &mut Fixture, port: u32) -> Vec<u8> {
    let sent = pattern(BUF_ALLOC as usize);
    for block in sent.chunks(64 * 1024) {
        fixture.guest.send(port, 80, op::RW, 0, block);
    }
    sent
}

fn read_all(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an end of file in time");
    bytes
}

#[test]
fn a_client_that_finished_writing_still_gets_the_answer() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);

    client.write_all(b"question").expect("room for a word");
    client.shutdown(Shutdown::Write).expect("the socket is connected");
    assert_eq!(fixture.guest.receive_op(op::RW).data, b"question");
    assert_eq!(fixture.guest.receive_op(op::SHUTDOWN).header.flags, SHUTDOWN_SEND);
    fixture.guest.send(port, 80, op::RW, 0, b"answer");
    fixture.guest.send(port, 80, op::SHUTDOWN, SHUTDOWN_BOTH, &[]);

    assert_eq!(read_all(&mut client), b"answer");
    fixture.guest.receive_op(op::RST);
}

#[test]
fn a_guest_that_finished_writing_still_gets_the_answer() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);

    fixture.guest.send(port, 80, op::RW, 0, b"question");
    fixture.guest.send(port, 80, op::SHUTDOWN, SHUTDOWN_SEND, &[]);
    assert_eq!(read_all(&mut client), b"question");
    client.write_all(b"answer").expect("the other direction is open");
    drop(client);

    assert_eq!(fixture.guest.receive_op(op::RW).data, b"answer");
    let shutdown = fixture.guest.receive_other_than(&[op::CREDIT_UPDATE]);
    assert_eq!(shutdown.op(), op::SHUTDOWN);
}

#[test]
fn the_last_bytes_of_a_guest_that_closed_arrive_before_the_end() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let sent = overfill(&mut fixture, port);

    fixture.guest.send(port, 80, op::SHUTDOWN, SHUTDOWN_BOTH, &[]);

    assert!(read_all(&mut client) == sent);
    let reset = fixture.guest.receive_other_than(&[op::CREDIT_UPDATE, op::SHUTDOWN]);
    assert_eq!(reset.op(), op::RST);
}

#[test]
fn the_last_bytes_arrive_even_if_the_guest_did_not_wait_for_them() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let sent = overfill(&mut fixture, port);

    fixture.guest.send(port, 80, op::SHUTDOWN, SHUTDOWN_BOTH, &[]);
    // Linux does this eight seconds after the close.
    fixture.guest.send(port, 80, op::RST, 0, &[]);

    assert!(read_all(&mut client) == sent);
}

#[test]
fn the_guests_port_is_free_again_while_its_last_bytes_are_waiting() {
    let mut fixture = Fixture::new();
    let mut first = fixture.linked(1000);
    let sent = pattern(BUF_ALLOC as usize);
    for block in sent.chunks(64 * 1024) {
        fixture.guest.send(super::LINK_PORT, 1000, op::RW, 0, block);
    }
    fixture.guest.send(super::LINK_PORT, 1000, op::RST, 0, &[]);
    while fixture.guest.poll().is_some() {}

    let mut second = fixture.linked(1000);
    fixture.guest.send(super::LINK_PORT, 1000, op::RW, 0, b"new");

    let mut bytes = [0; 3];
    second.read_exact(&mut bytes).expect("the bytes in time");
    assert_eq!(&bytes, b"new");
    assert!(read_all(&mut first) == sent);
}

#[test]
fn the_last_bytes_of_a_client_that_closed_arrive_before_the_end() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);
    let sent = pattern(100_000);
    client.write_all(&sent).expect("room for the bytes");

    drop(client);

    let mut received = Vec::new();
    let mut flags = 0;
    while flags != SHUTDOWN_BOTH {
        let packet = fixture.guest.receive();
        received.extend_from_slice(&packet.data);
        flags |= packet.header.flags.get();
    }
    assert!(received == sent);
    fixture.guest.send(port, 80, op::RST, 0, &[]);
    // The connection is gone: what still comes is answered as a stranger's.
    fixture.guest.send(port, 80, op::CREDIT_UPDATE, 0, &[]);
    fixture.guest.receive_op(op::RST);
}

#[test]
fn the_end_of_a_stream_needs_no_credit() {
    let mut fixture = Fixture::new();
    fixture.guest.buf_alloc = 0;
    let (client, _) = fixture.connected(80);

    client.shutdown(Shutdown::Write).expect("the socket is connected");

    let shutdown = fixture.guest.receive_other_than(&[op::CREDIT_REQUEST]);
    assert_eq!((shutdown.op(), shutdown.header.flags.get()), (op::SHUTDOWN, SHUTDOWN_SEND));
}

#[test]
fn a_guest_that_will_not_receive_breaks_the_clients_pipe() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);

    fixture.guest.send(port, 80, op::SHUTDOWN, SHUTDOWN_RECEIVE, &[]);
    fixture.guest.receive_op(op::SHUTDOWN);

    let error = client.write_all(b"unwanted").expect_err("nobody reads this");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    fixture.guest.send(port, 80, op::RW, 0, b"but listen");
    let mut bytes = [0; 10];
    client.read_exact(&mut bytes).expect("the other direction is open");
    assert_eq!(&bytes, b"but listen");
}

#[test]
fn a_guest_that_resets_closes_the_client_at_once() {
    let mut fixture = Fixture::new();
    let (mut client, port) = fixture.connected(80);

    fixture.guest.send(port, 80, op::RST, 0, &[]);

    assert_at_end(&mut client);
}

#[test]
fn a_guest_that_opens_a_connection_again_after_the_host_closed_it_gets_a_new_one() {
    let mut fixture = Fixture::new();
    drop(fixture.linked(1000));
    let mut flags = 0;
    while flags != SHUTDOWN_BOTH {
        flags |= fixture.guest.receive_op(op::SHUTDOWN).header.flags.get();
    }

    let mut again = fixture.linked(1000);
    fixture.guest.send(super::LINK_PORT, 1000, op::RW, 0, b"again");

    let mut bytes = [0; 5];
    again.read_exact(&mut bytes).expect("the bytes in time");
    assert_eq!(&bytes, b"again");
}
