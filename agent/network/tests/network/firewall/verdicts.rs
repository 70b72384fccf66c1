//! Policies, and what becomes of packets: what the policy says of a destination.

use std::thread;

use proptest::prelude::*;
use proptest::sample::select;
use sandpiper_policy::{Destination, Platform, Policy, Profiles, Rule};

use super::probe::Answer;
use super::world::{World, only, policy, policy_with, texts};

/// Tried under every policy.
const DESTINATIONS: &[&str] = &[
    "tcp:198.51.100.7:22",
    "tcp:198.51.100.7:443",
    "tcp:198.51.100.7:8443",
    "udp:198.51.100.7:443",
    "udp:198.51.100.7:5000",
    "icmp:198.51.100.7",
    "tcp:198.51.100.200:22",
    "tcp:198.51.100.200:80",
    "udp:198.51.100.200:53",
    "icmp:198.51.100.200",
    "tcp:203.0.113.1:53",
    "tcp:203.0.113.1:80",
    "tcp:203.0.113.1:443",
    "tcp:203.0.113.1:853",
    "udp:203.0.113.1:443",
    "udp:203.0.113.1:5000",
    "icmp:203.0.113.1",
    "tcp:[2001:db8::7]:22",
    "tcp:[2001:db8::7]:443",
    "udp:[2001:db8::7]:5000",
    "icmp:2001:db8::7",
    "tcp:[2001:db8:1::1]:80",
    "tcp:[2001:db8:1::1]:853",
    "udp:[2001:db8:1::1]:53",
    "udp:[2001:db8:1::1]:443",
    "icmp:2001:db8:1::1",
    // What protects the platform.
    "tcp:10.20.0.1:443",
    "icmp:10.20.0.1",
    "tcp:10.99.0.1:22",
    "tcp:169.254.169.254:80",
    "udp:169.254.169.254:53",
    "icmp:172.16.0.1",
    "tcp:192.168.1.1:8443",
    "tcp:100.65.0.2:22",
    "udp:100.65.0.2:5000",
    "icmp:100.65.0.2",
    "tcp:100.65.0.3:22",
    "tcp:168.63.129.16:80",
    "tcp:[fd00::1]:443",
    "icmp:fd00::1",
    "tcp:[64:ff9b::c633:6407]:443",
    "udp:[2002:c633:6407::1]:5000",
    "tcp:[fec0::7]:443",
    "tcp:[::198.51.100.7]:80",
    "udp:[::ffff:0:198.51.100.7]:5000",
];

#[track_caller]
fn check(world: &World, policy: &Policy) {
    world.apply(policy);
    let wrong = thread::scope(|scope| {
        let probes: Vec<_> = DESTINATIONS.iter().map(|text| scope.spawn(|| wrong(world, policy, text))).collect();
        probes.into_iter().filter_map(|probe| probe.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What happened that should not have.
fn wrong(world: &World, policy: &Policy, text: &str) -> Option<String> {
    let destination: Destination = text.parse().unwrap();
    let decision = policy.decide(&destination);
    let web = text.starts_with("tcp") && matches!(destination.port, Some(80 | 443));
    let by_name = web && policy.denies_names() && decision.rule == Rule::Internet(true);
    let expected = match decision.is_allowed() {
        true if by_name => Answer::Proxy,
        true => Answer::Internet,
        false => Answer::Nobody,
    };
    let answer = world.probe(&destination);
    (answer != expected).then(|| format!("{text}: {answer:?} instead of {expected:?}, since {}", decision.rule))
}

#[test]
fn the_default_is_the_internet_and_nothing_else() {
    check(&World::new(), &policy(|_| {}));
}

#[test]
fn without_internet_access_there_is_nothing() {
    check(&World::new(), &policy(|policy| policy.allow_internet_access = false));
}

#[test]
fn addresses_and_ranges_are_allowed_with_and_without_ports() {
    let entries = ["198.51.100.0/25", "203.0.113.1:443", "203.0.113.0/24:53", "2001:db8::7", "[2001:db8:1::/48]:853"];
    check(&World::new(), &only(&entries));
}

#[test]
fn an_address_has_the_ports_of_all_ranges_around_it() {
    let entries = [
        "198.51.0.0/16:22",
        "198.51.100.0/24:80",
        "198.51.100.7:443",
        "203.0.113.0/24:443",
        "203.0.113.1:5000",
        "203.0.113.1:853",
        "[2001:db8::/32]:443",
        "[2001:db8::7]:22",
        "[2001:db8:1::/48]:80",
    ];
    let world = World::new();
    check(&world, &only(&entries));
    check(&world, &policy(|policy| policy.deny_out = texts(&entries)));
}

#[test]
fn addresses_and_ranges_are_denied_with_and_without_ports() {
    let entries = ["198.51.100.200", "203.0.113.0/24:443", "198.51.100.7:22", "[2001:db8::7]:443", "2001:db8:1::/48"];
    check(&World::new(), &policy(|policy| policy.deny_out = texts(&entries)));
}

#[test]
fn what_is_allowed_beats_what_is_denied() {
    check(
        &World::new(),
        &policy(|policy| {
            policy.allow_out = texts(&["198.51.100.7", "203.0.113.1:443", "[2001:db8:1::1]:80"]);
            policy.deny_out = texts(&["0.0.0.0/0", "2001:db8:1::/48", "198.51.100.7:443"]);
        }),
    );
}

#[test]
fn profiles_come_after_both() {
    let profiles = Profiles::from_json(
        r#"{"profiles": {"mirror": ["198.51.100.0/24", "203.0.113.1:853", "[2001:db8:1::1]:80"], "other": ["203.0.113.1"]}}"#,
    )
    .unwrap();
    check(
        &World::new(),
        &policy_with(&profiles, &Platform::default(), |policy| {
            policy.allow_internet_access = false;
            policy.egress_profiles = texts(&["mirror"]);
            policy.allow_out = texts(&["203.0.113.1:443"]);
            policy.deny_out = texts(&["198.51.100.200:80", "[2001:db8:1::1]:853"]);
        }),
    );
}

#[test]
fn where_names_are_denied_the_web_goes_by_the_proxy_and_resolvers_are_not_reached() {
    check(
        &World::new(),
        &policy(|policy| {
            policy.deny_out = texts(&["bad.example.test", "198.51.100.200:22"]);
            policy.allow_out = texts(&["198.51.100.7:443", "[2001:db8:1::1]:853"]);
        }),
    );
}

#[test]
fn a_name_that_was_not_resolved_opens_nothing() {
    check(&World::new(), &only(&["api.example.test", "*.example.test:443"]));
}

#[test]
fn no_policy_opens_what_protects_the_platform_but_its_operator_may() {
    let everything = ["0.0.0.0/0", "::/0", "10.0.0.0/8:22"];
    let world = World::new();
    check(&world, &policy(|policy| policy.allow_out = texts(&everything)));
    let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let platform =
        Platform { allow: ranges(&["10.0.0.0/8", "fd00::/16"]), deny: ranges(&["10.99.0.0/16", "203.0.113.0/24"]) };
    check(&world, &policy_with(&Profiles::default(), &platform, |policy| policy.allow_out = texts(&everything)));
}

#[test]
fn every_sixteenth_address_of_a_long_list_is_met_exactly() {
    let world = World::new();
    let entries: Vec<_> = (0..=15).map(|block| format!("198.51.100.{}/29", block * 16)).collect();
    let policy = policy(|policy| {
        policy.allow_internet_access = false;
        policy.allow_out = entries.clone();
    });
    world.apply(&policy);
    let icmp = |last: u8| (last, world.icmp([198, 51, 100, last].into()) == Answer::Internet);
    let met: Vec<_> = thread::scope(|scope| {
        let probes: Vec<_> = [0, 7, 8, 15, 16, 23, 24, 127, 128, 135, 136, 240, 247, 248, 255]
            .map(|last| scope.spawn(move || icmp(last)))
            .into_iter()
            .collect();
        probes.into_iter().map(|probe| probe.join().unwrap()).collect()
    });
    for (last, met) in met {
        assert_eq!(met, last % 16 < 8, "198.51.100.{last}");
    }
}

#[test]
fn nothing_passes_before_there_is_a_policy() {
    let world = World::new();
    assert_eq!(world.tcp("198.51.100.7:443".parse().unwrap()), Answer::Nobody);
    assert_eq!(world.tcp("100.64.0.1:53".parse().unwrap()), Answer::Nobody);
    world.apply(&policy(|_| {}));
    assert_eq!(world.tcp("198.51.100.7:443".parse().unwrap()), Answer::Internet);
}

#[test]
fn of_the_slot_itself_only_the_resolver_is_there_and_echoes() {
    let world = World::new();
    world.apply(&policy(|policy| policy.allow_internet_access = false));
    for gateway in ["100.64.0.1", "[fd5a:5a::1]"] {
        let address = |port: u16| format!("{gateway}:{port}").parse().unwrap();
        assert_eq!(world.tcp(address(53)), Answer::Slot);
        assert_eq!(world.udp(address(53)), Answer::Internet);
        assert_eq!(world.icmp(gateway.trim_matches(['[', ']']).parse().unwrap()), Answer::Internet);
        // Other services, and the proxy by its own address.
        assert_eq!(world.tcp(address(22)), Answer::Nobody);
        assert_eq!(world.tcp(address(15080)), Answer::Nobody);
    }
}

/// An entry that is about some of the destinations, by chance.
fn entry() -> impl Strategy<Value = String> {
    let nets = [
        "198.51.100.7/32",
        "198.51.100.0/25",
        "198.51.100.128/25",
        "198.51.100.0/24",
        "198.51.0.0/16",
        "203.0.113.1/32",
        "203.0.113.0/24",
        "0.0.0.0/0",
        "10.20.0.0/16",
        "[2001:db8::7/128]",
        "[2001:db8::/64]",
        "[2001:db8:1::/48]",
        "[2001:db8::/32]",
        "[::/0]",
        "[fd00::/8]",
    ];
    let ports = ["", "", ":22", ":53", ":80", ":443", ":853", ":5000"];
    (select(nets.to_vec()), select(ports.to_vec())).prop_map(|(net, port)| format!("{net}{port}"))
}

proptest! {
    // Each of them is dozens of packets.
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_policy_is_its_verdicts_are_what_happens(
        internet: bool,
        denies_a_name: bool,
        allow_out in prop::collection::vec(entry(), 0..6),
        deny_out in prop::collection::vec(entry(), 0..6),
        profile in prop::collection::vec(entry(), 0..4),
    ) {
        let profiles = Profiles::from_json(&serde_json::json!({"profiles": {"chance": profile}}).to_string()).unwrap();
        let policy = policy_with(&profiles, &Platform::default(), |policy| {
            policy.allow_internet_access = internet;
            policy.allow_out = allow_out;
            policy.deny_out = deny_out;
            policy.deny_out.extend(denies_a_name.then(|| "bad.example.test".to_owned()));
            policy.egress_profiles = texts(&["chance"]);
        });
        check(&World::new(), &policy);
    }
}
