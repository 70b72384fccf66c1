//! How connections begin, and how they are refused.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sandpiper_protocol::guest::{GUEST_CID, LINK_PORT, PRIVILEGED_PORTS};
use vmm_sys_util::epoll::{Epoll, EventSet};

use super::super::connection::{COMMAND_TIMEOUT, REQUEST_TIMEOUT};
use super::super::muxer::{FIRST_ID, MAX_CONNECTIONS, Muxer};
use super::super::packet::op;
use super::{Fixture, TIMEOUT, assert_at_end, ports, read_line};
use crate::devices::virtio::VirtioDevice;

#[test]
fn a_client_is_connected_when_the_guest_responds() {
    let mut fixture = Fixture::new();

    let mut client = fixture.client(49983);
    let request = fixture.guest.receive_op(op::REQUEST);
    fixture.guest.reply(&request, op::RESPONSE, 0);

    assert_eq!(request.header.dst_port.get(), 49983);
    assert_eq!(read_line(&mut client), format!("OK {}\n", request.header.src_port));
}

#[test]
fn a_client_is_closed_without_an_answer_when_the_guest_refuses() {
    let mut fixture = Fixture::new();

    let mut client = fixture.client(80);
    let request = fixture.guest.receive_op(op::REQUEST);
    fixture.guest.reply(&request, op::RST, 0);

    assert_at_end(&mut client);
}

#[test]
fn what_follows_the_port_is_sent_after_the_response() {
    let mut fixture = Fixture::new();

    let mut client = fixture.client(80);
    client.write_all(b"early").expect("room for five bytes");
    let request = fixture.guest.receive_op(op::REQUEST);
    fixture.guest.reply(&request, op::RESPONSE, 0);

    assert_eq!(fixture.guest.receive_op(op::RW).data, b"early");
    assert_eq!(read_line(&mut client), format!("OK {}\n", request.header.src_port));
}

#[test]
fn a_client_that_says_something_else_is_closed() {
    let fixture = Fixture::new();
    let mut client = UnixStream::connect(&fixture.socket).expect("the listener accepts");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");

    client.write_all(b"GET / HTTP/1.1\r\nhost: guest\r\n\r\n").expect("room for a line");

    assert_at_end(&mut client);
}

#[test]
fn a_client_that_leaves_before_the_answer_is_reset_in_the_guest() {
    let mut fixture = Fixture::new();
    let client = fixture.client(80);
    let request = fixture.guest.receive_op(op::REQUEST);

    drop(client);

    assert_eq!(ports(&fixture.guest.receive_op(op::RST)), ports(&request));
}

#[test]
fn two_clients_get_ports_of_their_own() {
    let mut fixture = Fixture::new();

    let (mut one, one_port) = fixture.connected(80);
    let (mut two, two_port) = fixture.connected(80);
    fixture.guest.send(two_port, 80, op::RW, 0, b"2");
    fixture.guest.send(one_port, 80, op::RW, 0, b"1");

    let mut byte = [0];
    one.read_exact(&mut byte).expect("a byte in time");
    assert_eq!(&byte, b"1");
    two.read_exact(&mut byte).expect("a byte in time");
    assert_eq!(&byte, b"2");
}

#[test]
fn the_guest_connects_to_the_link_from_a_privileged_port() {
    let mut fixture = Fixture::new();
    let mut link = fixture.linked(PRIVILEGED_PORTS - 1);

    fixture.guest.send(LINK_PORT, PRIVILEGED_PORTS - 1, op::RW, 0, b"hello");
    let mut bytes = [0; 5];
    link.read_exact(&mut bytes).expect("the bytes in time");
    link.write_all(b"init").expect("room for four bytes");

    assert_eq!(&bytes, b"hello");
    assert_eq!(fixture.guest.receive_op(op::RW).data, b"init");
}

#[test]
fn the_link_is_refused_from_an_unprivileged_port_without_asking_the_host() {
    let mut fixture = Fixture::new();

    fixture.guest.send(LINK_PORT, PRIVILEGED_PORTS, op::REQUEST, 0, &[]);

    assert_eq!(ports(&fixture.guest.receive_op(op::RST)), (LINK_PORT, PRIVILEGED_PORTS));
    assert!(fixture.links.try_recv().is_err());
}

#[test]
fn a_port_that_the_host_does_not_offer_is_refused() {
    let mut fixture = Fixture::new();

    fixture.guest.send(22, 1000, op::REQUEST, 0, &[]);

    assert_eq!(ports(&fixture.guest.receive_op(op::RST)), (22, 1000));
}

#[test]
fn connections_beyond_the_limit_are_refused_on_both_sides_until_one_ends() {
    allow_many_descriptors();
    let mut fixture = Fixture::new();
    let mut clients: Vec<_> = (0..MAX_CONNECTIONS).map(|_| fixture.connected(80)).collect();

    let mut refused = UnixStream::connect(&fixture.socket).expect("the listener accepts");
    refused.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    assert_at_end(&mut refused);
    fixture.guest.send(LINK_PORT, 1000, op::REQUEST, 0, &[]);
    assert_eq!(ports(&fixture.guest.receive_op(op::RST)), (LINK_PORT, 1000));

    let (mut client, port) = clients.pop().expect("it was connected");
    fixture.guest.send(port, 80, op::RST, 0, &[]);
    assert_at_end(&mut client);
    fixture.connected(80);
}

/// Both ends of every connection are in this process.
fn allow_many_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid `rlimit` for both calls.
    let changed = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(65536);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    assert_eq!(changed, 0);
    assert!(limit.rlim_cur > 2 * MAX_CONNECTIONS as u64 + 64);
}

#[test]
fn a_reset_closes_host_streams_and_the_next_activation_serves_again() {
    let mut fixture = Fixture::new();
    let (mut client, _) = fixture.connected(80);
    let mut link = fixture.linked(1000);
    let mut waiting = fixture.client(81);
    fixture.guest.receive_op(op::REQUEST);

    fixture.device.reset();
    assert_at_end(&mut client);
    assert_at_end(&mut link);
    assert_at_end(&mut waiting);

    fixture.guest = super::driver::Guest::new();
    fixture.device.activate(fixture.guest.activation()).expect("the device starts again");
    fixture.connected(80);
}

#[test]
fn the_configuration_is_the_guests_address_and_zeroes() {
    let fixture = Fixture::new();
    let mut config = [0xff; 12];

    fixture.device.read_config(0, &mut config);
    assert_eq!(config, [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    fixture.device.read_config(u64::MAX, &mut config[..1]);
    assert_eq!(config[0], 0);
}

#[test]
fn a_client_that_names_no_port_is_closed_after_a_while() {
    let epoll = Epoll::new().expect("epoll");
    let mut muxer = Muxer::new(GUEST_CID, None);
    let (mut client, stream) = UnixStream::pair().expect("a socket pair");
    let now = Instant::now();

    muxer.accept(&epoll, stream, now);
    assert_eq!(muxer.next_deadline(), Some(now + COMMAND_TIMEOUT));
    muxer.expire(&epoll, now + COMMAND_TIMEOUT);

    assert_at_end(&mut client);
    assert_eq!(muxer.next_deadline(), None);
}

#[test]
fn a_request_that_the_guest_does_not_answer_is_given_up_after_a_while() {
    let epoll = Epoll::new().expect("epoll");
    let mut muxer = Muxer::new(GUEST_CID, None);
    let (mut client, stream) = UnixStream::pair().expect("a socket pair");
    client.write_all(b"CONNECT 80\n").expect("room for a line");
    let now = Instant::now();

    muxer.accept(&epoll, stream, now);
    muxer.host_event(&epoll, FIRST_ID, EventSet::IN, now);
    assert_eq!(muxer.next_deadline(), Some(now + REQUEST_TIMEOUT));
    muxer.expire(&epoll, now + REQUEST_TIMEOUT);

    assert_at_end(&mut client);
    assert_eq!(muxer.next_deadline(), None);
}
