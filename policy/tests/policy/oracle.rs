//! Random policies, judged a second time by code that looks at every entry in turn and shares nothing with the crate but
//! the texts, and a third time by a model of the firewall that is filled as the real one is.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use sandpiper_policy::{Destination, Name, Nets, Pin, Platform, Policy, Profiles, Resolution, Rule, Tier, Verdict};
use sandpiper_protocol::agent::NetworkPolicy;

use crate::name;

/// An entry as it was drawn, and as text.
#[derive(Debug, Clone)]
struct Drawn {
    target: Target,
    port: Option<u16>,
}

#[derive(Debug, Clone)]
enum Target {
    Name(String),
    Wildcard(String),
    Net(IpNet),
}

#[derive(Debug, Clone)]
struct Situation {
    internet: bool,
    allow: Vec<Drawn>,
    deny: Vec<Drawn>,
    profile: Vec<Drawn>,
    opened: Vec<IpNet>,
    closed: Vec<IpNet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Protected,
    Localhost,
    Allow,
    Deny,
    Profile,
    Resolver,
    Quic,
    Internet,
}

impl Drawn {
    fn text(&self) -> String {
        let host = match &self.target {
            Target::Name(name) => name.clone(),
            Target::Wildcard(name) => format!("*.{name}"),
            Target::Net(IpNet::V6(net)) => format!("[{net}]"),
            Target::Net(net) => net.to_string(),
        };
        self.port.map_or(host.clone(), |port| format!("{host}:{port}"))
    }

    fn fits_port(&self, port: Option<u16>) -> bool {
        self.port.is_none() || self.port == port
    }

    fn fits_name(&self, host: &str, port: Option<u16>) -> bool {
        let fits = match &self.target {
            Target::Name(name) => name == host,
            Target::Wildcard(name) => host.ends_with(&format!(".{name}")),
            Target::Net(_) => false,
        };
        fits && self.fits_port(port)
    }

    fn fits_address(&self, address: IpAddr, port: Option<u16>) -> bool {
        matches!(&self.target, Target::Net(net) if net.contains(&address)) && self.fits_port(port)
    }
}

/// Whether the entries without port, or else those with it, leave no gap in IPv4: a walk from its first address to its last.
fn fill_ipv4(entries: &[Drawn], port: Option<u16>) -> bool {
    let fills = |port: Option<u16>| {
        let mut ranges: Vec<(u64, u64)> = entries
            .iter()
            .filter_map(|entry| match entry.target {
                Target::Net(IpNet::V4(net)) if entry.port == port => {
                    Some((u32::from(net.network()).into(), u32::from(net.broadcast()).into()))
                }
                _ => None,
            })
            .collect();
        ranges.sort_unstable();
        ranges.into_iter().fold(0, |next, (from, to)| if from <= next { next.max(to + 1) } else { next }) == 1 << 32
    };
    fills(None) || fills(port)
}

const RANGES: [&str; 22] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "::ffff:0:0/96",
    "::ffff:0:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2001::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

impl Situation {
    fn policy(&self) -> Policy {
        let texts = |entries: &[Drawn]| entries.iter().map(Drawn::text).collect::<Vec<_>>();
        let policy = NetworkPolicy {
            allow_internet_access: self.internet,
            allow_package_registry_access: false,
            allow_out: texts(&self.allow),
            deny_out: texts(&self.deny),
            egress_profiles: vec!["drawn".to_owned()],
        };
        let profiles = serde_json::json!({"profiles": {"drawn": texts(&self.profile)}}).to_string();
        let platform = Platform { allow: self.opened.clone(), deny: self.closed.clone() };
        Policy::compile(&policy, &Profiles::from_json(&profiles).unwrap(), &platform).unwrap()
    }

    fn protects(&self, address: IpAddr) -> bool {
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
        let protected = RANGES.map(|net| net.parse().unwrap());
        within(&self.closed) || (within(&protected) && !within(&self.opened))
    }

    fn denies_names(&self) -> bool {
        self.internet && self.deny.iter().any(|entry| !matches!(entry.target, Target::Net(_)))
    }

    /// The crate's documentation, line by line.
    fn judge(&self, protocol: &str, host: Option<&str>, address: Option<IpAddr>, port: Option<u16>) -> (Verdict, Kind) {
        if address.is_some_and(|address| self.protects(address)) {
            return (Verdict::Deny, Kind::Protected);
        }
        if host.is_some_and(|host| host == "localhost" || host.ends_with(".localhost")) {
            return (Verdict::Deny, Kind::Localhost);
        }
        let by_name =
            |entries: &[Drawn]| host.is_some_and(|host| entries.iter().any(|entry| entry.fits_name(host, port)));
        let by_range = |entries: &[Drawn]| match address {
            Some(address) => entries.iter().any(|entry| entry.fits_address(address, port)),
            None => fill_ipv4(entries, port),
        };
        let is_quic = protocol == "udp" && port == Some(443);
        let default = match (self.denies_names() && matches!(port, Some(53 | 853)), self.internet) {
            (true, _) => (Verdict::Deny, Kind::Resolver),
            (false, true) => (Verdict::Allow, Kind::Internet),
            (false, false) => (Verdict::Deny, Kind::Internet),
        };
        let tiers = |names_open: bool| {
            if by_range(&self.allow) || (names_open && by_name(&self.allow)) {
                (Verdict::Allow, Kind::Allow)
            } else if by_range(&self.deny) || by_name(&self.deny) {
                (Verdict::Deny, Kind::Deny)
            } else if by_range(&self.profile) || (names_open && by_name(&self.profile)) {
                (Verdict::Allow, Kind::Profile)
            } else {
                default
            }
        };
        match (tiers(true), tiers(!is_quic)) {
            ((Verdict::Allow, _), (Verdict::Deny, _)) => (Verdict::Deny, Kind::Quic),
            (_, judged) => judged,
        }
    }
}

fn kind(rule: &Rule) -> Kind {
    match rule {
        Rule::Protected(_) => Kind::Protected,
        Rule::Localhost => Kind::Localhost,
        Rule::AllowOut(_) => Kind::Allow,
        Rule::DenyOut(_) => Kind::Deny,
        Rule::Profile(..) => Kind::Profile,
        Rule::Internet(_) => Kind::Internet,
        Rule::HiddenName => Kind::Quic,
        Rule::OtherResolver => Kind::Resolver,
    }
}

/// The firewall's view of a connection to an address that the forwarder gave for a name: sets of ranges and pins only.
fn firewall(policy: &Policy, pins: &[Pin], protocol: &str, address: IpAddr, port: Option<u16>) -> Verdict {
    let in_nets = |nets: &Nets| {
        nets.any_port.iter().any(|net| net.contains(&address))
            || nets.ports.iter().any(|(net, of)| net.contains(&address) && Some(*of) == port)
    };
    let is_quic = protocol == "udp" && port == Some(443);
    let is_pinned = |tier| pins.iter().any(|pin| pin.tier == tier && (pin.port.is_none() || pin.port == port));
    let opens = |tier| in_nets(policy.nets(tier)) || (!is_quic && is_pinned(tier));
    if policy.protected().iter().any(|net| net.contains(&address)) {
        Verdict::Deny
    } else if opens(Tier::AllowOut) {
        Verdict::Allow
    } else if in_nets(policy.nets(Tier::DenyOut)) || is_pinned(Tier::DenyOut) {
        Verdict::Deny
    } else if opens(Tier::Profile) || (policy.internet() && !(policy.denies_names() && matches!(port, Some(53 | 853))))
    {
        Verdict::Allow
    } else {
        Verdict::Deny
    }
}

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
