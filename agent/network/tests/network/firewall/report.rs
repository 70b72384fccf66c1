//! What the firewall tells of what it denied.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use sandpiper_network::config::Limits;

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
