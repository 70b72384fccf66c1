//! Random policies, judged by the crate and by the [`model`](crate::model).

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use sandpiper_policy::{Destination, Name, Resolution, Verdict};

use crate::model::{Drawn, Situation, Target, firewall, kind};
use crate::name;

fn host() -> impl Strategy<Value = String> {
    let local = select(vec!["localhost", "a.localhost", "notlocalhost", "localhost.test"]);
    prop_oneof![
        8 => vec(select(vec!["a", "b", "c"]), 1..4).prop_map(|labels| format!("{}.test", labels.join("."))),
        1 => local.prop_map(str::to_owned),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    select(vec![22, 53, 80, 443, 853])
}

fn address() -> impl Strategy<Value = IpAddr> {
    let few = [
        "198.51.100.1",
        "10.0.0.1",
        "10.200.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "fd00::1",
        "::1",
        "64:ff9b::1",
        "fec0::1",
        "::192.0.2.1",
        "::ffff:0:192.0.2.1",
    ];
    prop_oneof![
        4 => (0..16u8).prop_map(|last| IpAddr::from([203, 0, 113, last])),
        2 => (0..4u16).prop_map(|last| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last])),
        2 => select(few.map(|text| text.parse().unwrap()).to_vec()),
        1 => any::<IpAddr>().prop_map(|address| address.to_canonical()),
    ]
}

fn net() -> impl Strategy<Value = IpNet> {
    let wide = ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "::/0", "2001:db8::/32", "10.0.0.0/8", "10.0.0.0/9"];
    let around = (address(), 0..=128u8).prop_map(|(address, length)| {
        let length = if address.is_ipv4() { 24 + length % 9 } else { length.max(97) };
        IpNet::new(address, length).unwrap().trunc()
    });
    prop_oneof![2 => around, 1 => select(wide.map(|text| text.parse().unwrap()).to_vec())]
}

fn entries() -> impl Strategy<Value = Vec<Drawn>> {
    let target = prop_oneof![
        host().prop_map(Target::Name),
        host().prop_map(Target::Wildcard),
        Just(Target::Wildcard("test".to_owned())),
        net().prop_map(Target::Net),
        net().prop_map(Target::Net),
    ];
    let entry = (target, prop::option::of(port())).prop_map(|(target, port)| Drawn { target, port });
    vec(entry, 0..6)
}

fn situation() -> impl Strategy<Value = Situation> {
    let private = select(vec!["10.0.0.0/9", "10.0.0.1/32", "fc00::/7", "0.0.0.0/0"]);
    let closed = select(vec!["203.0.113.0/29", "2001:db8::2/127", "10.0.0.0/24"]);
    let nets = |texts: Vec<&str>| texts.into_iter().map(|text| text.parse().unwrap()).collect();
    (any::<bool>(), entries(), entries(), entries(), vec(private, 0..2), vec(closed, 0..2)).prop_map(
        move |(internet, allow, deny, profile, opened, closed)| Situation {
            internet,
            allow,
            deny,
            profile,
            opened: nets(opened),
            closed: nets(closed),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn decisions_are_those_of_looking_at_every_entry(
        situation in situation(), host in host(), address in address(), port in port(), protocol in select(vec!["tcp", "udp", "icmp"]),
    ) {
        let policy = situation.policy();
        let port = (protocol != "icmp").then_some(port);
        let suffix = port.map_or(String::new(), |port| format!(":{port}"));

        let destination: Destination = format!("{protocol}:{host}{suffix}").parse().unwrap();
        let decision = policy.decide(&destination);
        prop_assert_eq!((decision.verdict, kind(&decision.rule)), situation.judge(protocol, Some(&host), None, port));

        let shown = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        let destination: Destination = format!("{protocol}:{shown}{suffix}").parse().unwrap();
        let decision = policy.decide(&destination);
        prop_assert_eq!((decision.verdict, kind(&decision.rule)), situation.judge(protocol, None, Some(address), port));
    }

    #[test]
    fn the_proxy_is_told_what_every_entry_says(situation in situation(), host in host(), address in address(), port in port()) {
        let policy = situation.policy();
        let named: Name = name(&host);
        let decision = policy.named(&named, port);
        prop_assert_eq!((decision.verdict, kind(&decision.rule)), situation.judge("tcp", Some(&host), None, Some(port)));
        let decision = policy.vet(&named, address, port);
        prop_assert_eq!((decision.verdict, kind(&decision.rule)), situation.judge("tcp", Some(&host), Some(address), Some(port)));
    }

    #[test]
    fn a_name_is_resolved_exactly_if_it_is_allowed_on_some_port(situation in situation(), host in host()) {
        let allowed = |port| situation.judge("tcp", Some(&host), None, port).0 == Verdict::Allow;
        let is_allowed = [None, Some(22), Some(53), Some(80), Some(443), Some(853)].into_iter().any(allowed);
        let resolution = situation.policy().resolve(&name(&host));
        prop_assert_eq!(matches!(resolution, Resolution::Allowed { .. }), is_allowed);
    }

    #[test]
    fn ranges_and_pins_make_the_firewall_decide_as_the_policy_says(
        situation in situation(), host in host(), address in address(), port in port(), protocol in select(vec!["tcp", "udp", "icmp"]),
    ) {
        let policy = situation.policy();
        let port = (protocol != "icmp").then_some(port);
        if let Resolution::Allowed { pins } = policy.resolve(&name(&host)) {
            let expected = situation.judge(protocol, Some(&host), Some(address), port).0;
            prop_assert_eq!(firewall(&policy, &pins, protocol, address, port), expected);
        }
        let expected = situation.judge(protocol, None, Some(address), port).0;
        prop_assert_eq!(firewall(&policy, &[], protocol, address, port), expected);
    }
}
