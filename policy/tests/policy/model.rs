//! A second judge of policies, which looks at every entry in turn and shares nothing with the crate but the texts, and a
//! model of the firewall that is filled as the real one is. For the tests here and for fuzzing.

use std::net::IpAddr;

use ipnet::IpNet;
use sandpiper_policy::{Nets, Pin, Platform, Policy, Profiles, Rule, Tier, Verdict};
use sandpiper_protocol::agent::NetworkPolicy;

/// An entry as it was drawn, and as text.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    pub(crate) target: Target,
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Clone)]
pub(crate) enum Target {
    Name(String),
    Wildcard(String),
    Net(IpNet),
}

#[derive(Debug, Clone)]
pub(crate) struct Situation {
    pub(crate) internet: bool,
    pub(crate) allow: Vec<Drawn>,
    pub(crate) deny: Vec<Drawn>,
    pub(crate) profile: Vec<Drawn>,
    pub(crate) opened: Vec<IpNet>,
    pub(crate) closed: Vec<IpNet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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
    pub(crate) fn text(&self) -> String {
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

/// Whether the entries for this port leave no gap in IPv4: a walk from its first address to its last.
fn fill_ipv4(entries: &[Drawn], port: Option<u16>) -> bool {
    let mut ranges: Vec<(u64, u64)> = entries
        .iter()
        .filter(|entry| entry.fits_port(port))
        .filter_map(|entry| match entry.target {
            Target::Net(IpNet::V4(net)) => Some((u32::from(net.network()).into(), u32::from(net.broadcast()).into())),
            _ => None,
        })
        .collect();
    ranges.sort_unstable();
    ranges.into_iter().fold(0, |next, (from, to)| if from <= next { next.max(to + 1) } else { next }) == 1 << 32
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
    pub(crate) fn policy(&self) -> Policy {
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
    pub(crate) fn judge(
        &self,
        protocol: &str,
        host: Option<&str>,
        address: Option<IpAddr>,
        port: Option<u16>,
    ) -> (Verdict, Kind) {
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

pub(crate) fn kind(rule: &Rule) -> Kind {
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
pub(crate) fn firewall(policy: &Policy, pins: &[Pin], protocol: &str, address: IpAddr, port: Option<u16>) -> Verdict {
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
