//! What the firewall tells of what it denied, and of what it did not.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use sandpiper_network::config::Limits;
use sandpiper_protocol::interval::Bytes;

use super::frames::{IPV4, ethernet, ipv4};
use super::probe::Answer;
use super::world::{TICK, World, eventually, policy, texts};

#[test]
fn what_was_denied_is_listed_with_its_destination_how_often_and_when() {
    let world = World::new();
    world.apply(&policy(|policy| policy.deny_out = texts(&["198.51.100.7", "[2001:db8::7]:443"])));
    let start = Timestamp::now();
    for _ in 0..3 {
        assert_eq!(world.tcp("198.51.100.7:22".parse().unwrap()), Answer::Nobody);
    }
    assert_eq!(world.udp("[2001:db8::7]:443".parse().unwrap()), Answer::Nobody);
    assert_eq!(world.icmp("198.51.100.7".parse().unwrap()), Answer::Nobody);
    assert_eq!(world.tcp("203.0.113.1:22".parse().unwrap()), Answer::Internet);
    // A protocol that is none of the three.
    world
        .wire()
        .send(&ethernet(IPV4, &ipv4(Ipv4Addr::new(100, 64, 0, 2), Ipv4Addr::new(203, 0, 113, 1), 47, &[], &[0; 8])));
    eventually("the last one is counted", || world.firewall.totals().unwrap().policy == 6);

    let mut denied = world.firewall.denied().unwrap();
    denied.sort_by_key(|packet| (packet.protocol, packet.address));
    let told: Vec<_> =
        denied.iter().map(|packet| (packet.protocol, packet.address.to_string(), packet.port, packet.count)).collect();
    assert_eq!(
        told,
        [
            (1, "198.51.100.7".to_owned(), None, 1),
            (6, "198.51.100.7".to_owned(), Some(22), 3),
            (17, "2001:db8::7".to_owned(), Some(443), 1),
            (47, "203.0.113.1".to_owned(), None, 1),
        ]
    );
    for packet in &denied {
        assert!(packet.time + TICK >= start && packet.time <= Timestamp::now() + TICK, "{packet:?}");
    }
}

#[test]
fn the_list_is_bounded_and_the_count_is_not() {
    let world = World::with_limits(&Limits { new_connections: 5000, ..Limits::default() });
    world.apply(&policy(|policy| policy.allow_internet_access = false));
    let totals = || world.firewall.totals().unwrap();
    let frames = (0..5000_u32).map(|number| {
        let address = Ipv4Addr::from(0xc633_6400 + number);
        ethernet(IPV4, &ipv4(Ipv4Addr::new(100, 64, 0, 2), address, 47, &[], &[0; 8]))
    });
    world.wire().flood(frames, || totals().policy + totals().limited);
    assert_eq!(totals().policy, 5000);
    assert_eq!(world.firewall.denied().unwrap().len(), 2048);
}

#[test]
fn what_is_forwarded_is_counted_to_the_byte_and_what_is_denied_is_not() {
    let world = World::new();
    world.apply(&policy(|policy| policy.deny_out = texts(&["198.51.100.7", "2001:db8::7"])));
    let counted = |egress, ingress| assert_eq!(world.firewall.forwarded().unwrap(), Some(Bytes { egress, ingress }));
    counted(0, 0);

    // Headers of IP and UDP, and eight bytes, there and back.
    assert_eq!(world.udp("203.0.113.1:22".parse().unwrap()), Answer::Internet);
    counted(36, 36);
    assert_eq!(world.udp("[2001:db8::1]:22".parse().unwrap()), Answer::Internet);
    counted(36 + 56, 36 + 56);
    assert_eq!(world.icmp("203.0.113.1".parse().unwrap()), Answer::Internet);
    counted(36 + 56 + 28, 36 + 56 + 28);

    for denied in ["198.51.100.7:22", "[2001:db8::7]:22"] {
        assert_eq!(world.tcp(denied.parse().unwrap()), Answer::Nobody);
        assert_eq!(world.udp(denied.parse().unwrap()), Answer::Nobody);
    }
    // To the slot's own name server, and to where the proxy is.
    assert_eq!(world.udp("100.64.0.1:53".parse().unwrap()), Answer::Internet);
    assert_eq!(world.tcp("100.64.0.1:53".parse().unwrap()), Answer::Slot);
    // From addresses that are not the guest's.
    let foreign = ipv4(Ipv4Addr::new(100, 64, 0, 9), Ipv4Addr::new(203, 0, 113, 1), 17, &[], &[0; 8]);
    let spoofed = world.firewall.totals().unwrap().spoofed;
    world.wire().send(&ethernet(IPV4, &foreign));
    eventually("it is dropped", || world.firewall.totals().unwrap().spoofed == spoofed + 1);
    counted(36 + 56 + 28, 36 + 56 + 28);
}

#[test]
fn a_connection_that_a_new_policy_cuts_is_counted_until_then() {
    let world = World::new();
    world.apply(&policy(|_| {}));
    let to = "203.0.113.1:4000".parse().unwrap();
    world.internet.echo(&world.outside, to);
    let socket = world.datagrams_to(to);
    for _ in 0..3 {
        socket.send(&[0; 100]).unwrap();
    }
    eventually("all are forwarded", || world.firewall.forwarded().unwrap().unwrap().egress == 3 * 128);

    let denied = world.firewall.totals().unwrap().policy;
    world.apply(&policy(|policy| policy.allow_internet_access = false));
    socket.send(&[0; 100]).unwrap();
    eventually("it is denied", || world.firewall.totals().unwrap().policy > denied);
    assert_eq!(world.firewall.forwarded().unwrap().unwrap().egress, 3 * 128);
}
