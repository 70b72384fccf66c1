//! What a guest with a mind of its own puts on the wire.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::frames::{
    ARP, ICMPV6, IPV4, IPV6, UDP, Wire, arp, ethernet, ethernet_from, icmpv4, icmpv6, ipv4, ipv6, udp,
};
use super::probe::{Answer, exchange, icmp_socket};
use super::world::{GUEST_MAC, World, eventually, only, policy};

const GUEST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd5a, 0x5a, 0, 0, 0, 0, 0, 2);
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd5a, 0x5a, 0, 0, 0, 0, 0, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PORT: u16 = 5000;
const OTHER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 9];

fn datagram(source: Ipv4Addr) -> Vec<u8> {
    ipv4(source, SERVER, UDP, &[], &udp(source.into(), SERVER.into(), PORT, b"evil"))
}

fn datagram6(source: Ipv6Addr) -> Vec<u8> {
    ipv6(source, SERVER6, UDP, &udp(source.into(), SERVER6.into(), PORT, b"evil"))
}

/// A datagram behind an extension header of eight bytes.
fn behind(header: u8, content: [u8; 6]) -> Vec<u8> {
    let rest = udp(GUEST6.into(), SERVER6.into(), PORT, b"evil");
    ipv6(GUEST6, SERVER6, header, &[&[UDP, 0][..], &content, &rest].concat())
}

/// Sends frames, and after each one that is as it should be; only those may arrive.
#[track_caller]
fn nothing_but_the_good_arrives(good: &[u8], server: SocketAddr, evil: &[(&str, Vec<u8>)]) {
    let world = World::new();
    world.apply(&policy(|_| {}));
    world.internet.echo(&world.outside, server);
    // The neighbours know each other, so that frames are not late.
    assert_eq!(world.udp(server), Answer::Internet);
    let (wire, before) = (world.wire(), world.internet.received(server));
    for (number, (what, frame)) in (1_u64..).zip(evil) {
        let dropped = world.firewall.totals().unwrap().spoofed;
        wire.send(frame);
        wire.send(good);
        eventually(what, || world.internet.received(server) >= before + number);
        assert_eq!(world.internet.received(server), before + number, "{what}");
        assert_eq!(world.firewall.totals().unwrap().spoofed, dropped + 1, "{what}");
    }
}

#[test]
fn frames_of_ipv4_that_are_not_the_guests_own_go_nowhere() {
    let fine = datagram(GUEST);
    let source_route = [131, 7, 4, 203, 0, 113, 9, 0];
    let evil = [
        ("another's Ethernet address", ethernet_from(OTHER_MAC, IPV4, &fine)),
        ("a neighbour's address", ethernet(IPV4, &datagram(Ipv4Addr::new(100, 64, 0, 3)))),
        ("the gateway's address", ethernet(IPV4, &datagram(GATEWAY))),
        ("the host's address", ethernet(IPV4, &datagram(Ipv4Addr::new(100, 65, 0, 2)))),
        ("a public address", ethernet(IPV4, &datagram(Ipv4Addr::new(203, 0, 113, 9)))),
        ("no address", ethernet(IPV4, &datagram(Ipv4Addr::UNSPECIFIED))),
        ("a loopback address", ethernet(IPV4, &datagram(Ipv4Addr::LOCALHOST))),
        (
            "a route of the sender's choice",
            ethernet(IPV4, &ipv4(GUEST, SERVER, UDP, &source_route, &udp(GUEST.into(), SERVER.into(), PORT, b"evil"))),
        ),
        ("a VLAN", ethernet(0x8100, &[&[0, 5, 8, 0][..], &fine].concat())),
        ("a priority", ethernet(0x8100, &[&[0xe0, 0, 8, 0][..], &fine].concat())),
        ("a provider's VLAN", ethernet(0x88a8, &[&[0, 5, 0x81, 0, 0, 6, 8, 0][..], &fine].concat())),
        ("PPPoE", ethernet(0x8864, &[&[0x11, 0, 0, 1, 0, 34, 0, 0x21][..], &fine].concat())),
        ("no known type", ethernet(0x88b5, &fine)),
        ("a length for a type", ethernet(46, &fine)),
        ("IPv6 that says it is IPv4", ethernet(IPV4, &datagram6(GUEST6))),
    ];
    nothing_but_the_good_arrives(&ethernet(IPV4, &fine), (SERVER, PORT).into(), &evil);
}

#[test]
fn frames_of_ipv6_that_are_not_the_guests_own_go_nowhere() {
    let fine = datagram6(GUEST6);
    let first_fragment = [0, 0, 1, 0, 0, 0, 1];
    let options_in_a_fragment = [&[60][..], &first_fragment, &[UDP, 0, 1, 4, 0, 0, 0, 0]].concat();
    let rest = udp(GUEST6.into(), SERVER6.into(), PORT, b"evil");
    let options_before_a_fragment = [&[44, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 0, 0, 0, 0, 0, 1][..], &rest].concat();
    let evil = [
        ("another's Ethernet address", ethernet_from(OTHER_MAC, IPV6, &fine)),
        ("a neighbour's address", ethernet(IPV6, &datagram6(Ipv6Addr::new(0xfd5a, 0x5a, 0, 0, 0, 0, 0, 3)))),
        ("the gateway's address", ethernet(IPV6, &datagram6(GATEWAY6))),
        ("a public address", ethernet(IPV6, &datagram6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)))),
        ("a link-local address", ethernet(IPV6, &datagram6(LINK_LOCAL))),
        ("no address", ethernet(IPV6, &datagram6(Ipv6Addr::UNSPECIFIED))),
        ("hop-by-hop options", ethernet(IPV6, &behind(0, [1, 4, 0, 0, 0, 0]))),
        ("options for the destination", ethernet(IPV6, &behind(60, [1, 4, 0, 0, 0, 0]))),
        ("a route of the sender's choice", ethernet(IPV6, &behind(43, [0, 0, 0, 0, 0, 0]))),
        ("a segment route", ethernet(IPV6, &behind(43, [4, 0, 0, 0, 0, 0]))),
        ("options in a fragment", ethernet(IPV6, &ipv6(GUEST6, SERVER6, 44, &options_in_a_fragment))),
        ("options before a fragment", ethernet(IPV6, &ipv6(GUEST6, SERVER6, 0, &options_before_a_fragment))),
        ("a tunnel", ethernet(IPV6, &ipv6(GUEST6, SERVER6, 41, &fine))),
        ("IPv4 that says it is IPv6", ethernet(IPV6, &datagram(GUEST))),
    ];
    nothing_but_the_good_arrives(&ethernet(IPV6, &fine), (SERVER6, PORT).into(), &evil);
}

/// What the slot knows of its neighbours at the guest's side.
fn neighbours(world: &World) -> String {
    world.slot.ask_ip(&["neigh", "show", "dev", "tap0"])
}

#[test]
fn by_arp_the_guest_claims_its_own_address_only() {
    let world = World::new();
    // A slot that believes everything.
    world.slot.sysctl("ipv4/conf/tap0/arp_accept", "1");
    let wire = world.wire();
    let stranger = Ipv4Addr::new(100, 64, 0, 3);
    wire.send(&ethernet(ARP, &arp(GUEST_MAC, stranger)));
    wire.send(&ethernet(ARP, &arp(OTHER_MAC, GUEST)));
    wire.send(&ethernet(ARP, &arp(GUEST_MAC, GATEWAY)));
    wire.send(&ethernet_from(OTHER_MAC, ARP, &arp(OTHER_MAC, GUEST)));
    wire.send(&ethernet(ARP, &arp(GUEST_MAC, GUEST)));
    eventually("the guest's own address", || neighbours(&world).contains("100.64.0.2 lladdr 02:00:00:00:00:02"));
    let known = neighbours(&world);
    assert!(!known.contains("100.64.0.3") && !known.contains("100.64.0.1 ") && !known.contains("00:09"), "{known}");
    assert_eq!(world.firewall.totals().unwrap().spoofed, 4);
}

#[test]
fn the_guest_is_no_router_and_speaks_for_no_neighbour() {
    let world = World::new();
    // A slot that believes everything.
    for (key, value) in [("accept_ra", "2"), ("accept_redirects", "1"), ("drop_unsolicited_na", "0")] {
        world.slot.sysctl(&format!("ipv6/conf/tap0/{key}"), value);
    }
    world.apply(&policy(|_| {}));
    assert_eq!(world.icmp(GATEWAY6.into()), Answer::Internet);
    let before = (world.slot.ask_ip(&["-6", "route", "show"]), world.slot.ask_ip(&["-6", "address", "show"]));
    let wire = world.wire();
    let spoofed = || world.firewall.totals().unwrap().spoofed;
    let send = |source, destination, kind, body: &[u8]| {
        wire.send(&ethernet(IPV6, &ipv6(source, destination, ICMPV6, &icmpv6(source, destination, kind, body))));
    };
    // A router's advertisement: a lifetime of 1,800 s, and a prefix (RFC 4861, sections 4.2 and 4.6.2).
    let prefix = [&[3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 0, 0x38, 0x40, 0, 0, 0, 0][..], &SERVER6.octets()].concat();
    let advertisement = [&[64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &prefix].concat();
    let claim = |target: Ipv6Addr| [&[0x20, 0, 0, 0][..], &target.octets(), &[2, 1], &OTHER_MAC].concat();
    send(LINK_LOCAL, ALL_NODES, 134, &advertisement);
    send(GUEST6, ALL_NODES, 134, &advertisement);
    send(LINK_LOCAL, GATEWAY6, 137, &[&[0; 4][..], &LINK_LOCAL.octets(), &SERVER6.octets()].concat());
    send(GUEST6, GATEWAY6, 136, &claim(GATEWAY6));
    send(GUEST6, GATEWAY6, 136, &claim(Ipv6Addr::new(0xfd5a, 0x5a, 0, 0, 0, 0, 0, 3)));
    eventually("five frames are dropped", || spoofed() >= 5);
    assert_eq!(spoofed(), 5);
    assert_eq!(before, (world.slot.ask_ip(&["-6", "route", "show"]), world.slot.ask_ip(&["-6", "address", "show"])));

    // What every guest says when it starts is not held against it.
    send(Ipv6Addr::UNSPECIFIED, ALL_NODES, 135, &[&[0; 4][..], &GUEST6.octets()].concat());
    send(LINK_LOCAL, ALL_NODES, 133, &[0; 4]);
    assert_eq!(world.icmp(GATEWAY6.into()), Answer::Internet);
    assert_eq!(spoofed(), 5);
}

#[test]
fn neighbour_discovery_is_not_for_those_beyond_the_slot() {
    let world = World::new();
    world.apply(&policy(|_| {}));
    let outside = world.outside.run(|| icmp_socket(libc::SOCK_RAW, SERVER6.into()));
    let wire = world.wire();
    for (kind, target) in [(135, SERVER6), (136, GUEST6)] {
        let body = [&[0; 4][..], &target.octets(), b"a secret"].concat();
        wire.send(&ethernet(IPV6, &ipv6(GUEST6, SERVER6, ICMPV6, &icmpv6(GUEST6, SERVER6, kind, &body))));
    }
    assert_eq!(world.icmp(SERVER6.into()), Answer::Internet);
    // All that came there, up to the request for an echo.
    let mut message = [0; 128];
    while message[0] != 128 {
        let length = outside.recv(&mut message).unwrap();
        assert!(!message[..length].ends_with(b"a secret"), "{:?}", &message[..length]);
    }
}

#[test]
fn a_redirect_about_a_connection_that_exists_is_dropped() {
    let world = World::new();
    for links in ["all", "tap0"] {
        world.slot.sysctl(&format!("ipv4/conf/{links}/accept_redirects"), "1");
    }
    world.apply(&policy(|_| {}));
    let server = SocketAddr::from((SERVER, PORT));
    world.internet.echo(&world.outside, server);
    let wire = world.wire();
    wire.send(&ethernet(IPV4, &datagram(GUEST)));
    eventually("the datagram arrives", || world.internet.received(server) == 1);
    // About the answer, which the slot has sent to the guest.
    let answer = ipv4(SERVER, GUEST, UDP, &[], &[PORT, 4000, 12, 0].map(u16::to_be_bytes).concat());
    let redirect = icmpv4(5, 1, &[&[100, 64, 0, 3][..], &answer].concat());
    wire.send(&ethernet(IPV4, &ipv4(GUEST, SERVER, 1, &[], &redirect)));
    eventually("it is dropped", || world.firewall.totals().unwrap().spoofed == 1);
}

#[test]
fn fragments_are_judged_as_the_packet_that_they_make() {
    let world = World::new();
    world.apply(&only(&["198.51.100.7:5000", "[2001:db8::7]:5000"]));
    let large = vec![7; 4000];
    for server in ["198.51.100.7", "[2001:db8::7]"] {
        let address = |port: u16| format!("{server}:{port}").parse().unwrap();
        for port in [5000, 5001] {
            world.internet.echo(&world.outside, address(port));
        }
        exchange(&world.datagrams_to(address(5000)), &large).unwrap();
        exchange(&world.datagrams_to(address(5001)), &large).unwrap_err();
        assert_eq!(world.internet.received(address(5001)), 0);
    }
}

#[test]
fn ports_that_hide_in_a_second_fragment_are_found() {
    let world = World::new();
    world.apply(&only(&["198.51.100.7:5000"]));
    let server = SocketAddr::from((SERVER, 5001));
    world.internet.echo(&world.outside, server);
    let wire: Wire = world.wire();
    // The first eight bytes, which hold the ports, come last; and once more, with other ports, over the first.
    let fragment = |offset: usize, more: bool, payload: &[u8]| {
        let mut packet = ipv4(GUEST, SERVER, UDP, &[], payload);
        let flags = u16::try_from(offset / 8).unwrap() | u16::from(more) << 13;
        packet[4..6].copy_from_slice(&77_u16.to_be_bytes());
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        // The checksum again: by what the two fields changed it.
        let sum = u16::from_be_bytes([packet[10], packet[11]]);
        let mut changed = u32::from(!sum) + 77 + u32::from(flags);
        changed = (changed & 0xffff) + (changed >> 16);
        packet[10..12].copy_from_slice(&(!u16::try_from(changed).unwrap()).to_be_bytes());
        ethernet(IPV4, &packet)
    };
    let denied = udp(GUEST.into(), SERVER.into(), 5001, &[1; 24]);
    let allowed = udp(GUEST.into(), SERVER.into(), 5000, &[1; 24]);
    wire.send(&fragment(8, false, &denied[8..]));
    wire.send(&fragment(0, true, &denied[..8]));
    eventually("it is denied", || world.firewall.totals().unwrap().policy == 1);
    wire.send(&fragment(0, true, &allowed[..8]));
    wire.send(&fragment(0, true, &denied[..8]));
    wire.send(&fragment(8, false, &denied[8..]));
    assert_eq!(world.udp("198.51.100.7:5000".parse().unwrap()), Answer::Internet);
    assert_eq!(world.internet.received(server), 0);
}
