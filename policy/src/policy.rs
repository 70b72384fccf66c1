//! A policy, compiled: every question that the host has about it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use sandpiper_protocol::agent::NetworkPolicy;
use thiserror::Error;

use crate::decision::{Decision, Rule, Verdict};
use crate::destination::{Destination, Host, Protocol};
use crate::entry::{Entry, EntryError};
use crate::index::Index;
use crate::name::Name;
use crate::nets::Nets;
use crate::platform::Platform;
use crate::profiles::Profiles;

/// Most entries of one policy, those of its profiles included: what a slot's firewall takes in one transaction.
pub const MAX_ENTRIES: usize = 10_000;

/// The profile that `allow_package_registry_access` stands for. Unlike a profile that is named, it may be missing: then there
/// is nothing to allow.
pub const PACKAGE_REGISTRIES: &str = "package-registries";

/// Where QUIC is spoken.
const QUIC: u16 = 443;

/// Where resolvers listen: DNS, and DNS over TLS or QUIC.
const RESOLVERS: [u16; 2] = [53, 853];

/// The tiers that consist of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    AllowOut,
    DenyOut,
    Profile,
}

/// A compiled policy. It does not change: another policy is another one of these.
#[derive(Debug, Clone)]
pub struct Policy {
    platform: Platform,
    protected: Vec<IpNet>,
    allow_out: Index,
    deny_out: Index,
    profiles: Index,
    internet: bool,
}

/// Why something is no policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    #[error("{field}[{index}]")]
    Entry {
        /// `allow_out` or `deny_out`.
        field: &'static str,
        /// From 0.
        index: usize,
        source: EntryError,
    },
    #[error("There is no egress profile {name:?}; {}", known_profiles(known))]
    UnknownProfile { name: String, known: Vec<String> },
    #[error("The policy has {0} entries, those of its profiles included; {MAX_ENTRIES} are possible. Use wider ranges")]
    TooManyEntries(usize),
}

fn known_profiles(known: &[String]) -> String {
    if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) }
}

/// What the DNS forwarder does with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It answers that there is no such name.
    Refused(Rule),
    /// It resolves the name, and pins the addresses before it answers; there are no pins if no entry names the name.
    Allowed { pins: Vec<Pin> },
}

/// Where the firewall keeps the addresses of a name: as if an entry of this tier named each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin {
    pub tier: Tier,
    /// None: for every protocol and port.
    pub port: Option<u16>,
}

impl Policy {
    /// Compiles `policy` into one that answers questions, within what `platform` protects. `profiles` are those of the
    /// host.
    ///
    /// # Errors
    /// An entry that cannot be read, a profile that the host does not have, or more than [`MAX_ENTRIES`] entries in
    /// all.
    pub fn compile(policy: &NetworkPolicy, profiles: &Profiles, platform: &Platform) -> Result<Self, PolicyError> {
        let chosen = chosen_profiles(policy, profiles)?;
        let entries = policy.allow_out.len()
            + policy.deny_out.len()
            + chosen.iter().map(|(_, entries)| entries.len()).sum::<usize>();
        if entries > MAX_ENTRIES {
            return Err(PolicyError::TooManyEntries(entries));
        }
        let with_rule = |rule: fn(Entry) -> Rule| move |entry: Entry| (entry.clone(), rule(entry));
        let allow_out = parse("allow_out", &policy.allow_out)?;
        let deny_out = parse("deny_out", &policy.deny_out)?;
        let of_profiles = chosen.into_iter().flat_map(|(name, entries)| {
            entries.iter().map(move |entry| (entry.clone(), Rule::Profile(name.to_owned(), entry.clone())))
        });
        Ok(Self {
            platform: platform.clone(),
            protected: platform.protected_nets(),
            allow_out: Index::new(allow_out.into_iter().map(with_rule(Rule::AllowOut))),
            deny_out: Index::new(deny_out.into_iter().map(with_rule(Rule::DenyOut))),
            profiles: Index::new(of_profiles),
            internet: policy.allow_internet_access,
        })
    }

    /// An address: as the firewall decides without any pins. A name: as forwarder, firewall and proxy decide together,
    /// as far as that does not depend on the addresses that the name has.
    pub fn decide(&self, destination: &Destination) -> Decision {
        let Destination { protocol, ref host, port } = *destination;
        match host {
            Host::Name(name) => self.judge(protocol, port, Subject::Name(name)),
            Host::Address(address) => self.judge(protocol, port, Subject::Address(address.to_canonical())),
        }
    }

    /// Whether a TCP connection that names this host, as the proxy reads it, may go to this port at all. The proxy asks
    /// [`Policy::vet`] about each address of the name then.
    pub fn named(&self, name: &Name, port: u16) -> Decision {
        self.judge(Protocol::Tcp, Some(port), Subject::Name(name))
    }

    /// Whether a TCP connection that names this host may be dialled at this address of it.
    pub fn vet(&self, name: &Name, address: IpAddr, port: u16) -> Decision {
        self.judge(Protocol::Tcp, Some(port), Subject::Both(name, address))
    }

    /// What the DNS forwarder does with a question for this name. A name that is denied on some ports only is resolved, and
    /// its addresses are denied on those.
    pub fn resolve(&self, name: &Name) -> Resolution {
        let tiers =
            [(Tier::AllowOut, &self.allow_out), (Tier::DenyOut, &self.deny_out), (Tier::Profile, &self.profiles)];
        // None: a port that no entry mentions.
        let mut ports = BTreeSet::from([None]);
        let mut pins = Vec::new();
        for (tier, index) in tiers {
            let named = index.ports_of_name(name);
            pins.extend(named.iter().map(|port| Pin { tier, port: *port }));
            ports.extend(named);
            ports.extend(index.ports_of_any_address());
        }
        let decide = |port| self.judge(Protocol::Tcp, port, Subject::Name(name));
        if ports.into_iter().any(|port| decide(port).is_allowed()) {
            Resolution::Allowed { pins }
        } else {
            Resolution::Refused(decide(None).rule)
        }
    }

    /// The ranges of a tier, for the firewall; it looks at the tiers in their order.
    pub fn nets(&self, tier: Tier) -> &Nets {
        match tier {
            Tier::AllowOut => self.allow_out.nets(),
            Tier::DenyOut => self.deny_out.nets(),
            Tier::Profile => self.profiles.nets(),
        }
    }

    /// The platform's ranges; sorted, none within another.
    pub fn protected(&self) -> &[IpNet] {
        &self.protected
    }

    /// Whether what no entry names is allowed.
    pub fn internet(&self) -> bool {
        self.internet
    }

    /// Whether names are denied among what is allowed by default, so that the proxy has to see all of TCP 80 and 443 that
    /// no range decides about. Where the default is to deny, it needs to see what goes to pinned addresses only.
    pub fn denies_names(&self) -> bool {
        self.internet && self.deny_out.has_names()
    }

    /// QUIC shows no name, so a name opens nothing to it; the verdict then is that about the rest of what is known.
    fn judge(&self, protocol: Protocol, port: Option<u16>, subject: Subject<'_>) -> Decision {
        let decision = self.judge_by_tiers(port, subject, true);
        if (protocol, port) != (Protocol::Udp, Some(QUIC)) || !decision.is_allowed() {
            return decision;
        }
        let unnamed = self.judge_by_tiers(port, subject, false);
        match unnamed.verdict {
            Verdict::Allow => unnamed,
            Verdict::Deny => Decision::deny(Rule::HiddenName),
        }
    }

    /// `names_open`: whether an entry allows a name.
    fn judge_by_tiers(&self, port: Option<u16>, subject: Subject<'_>, names_open: bool) -> Decision {
        if let Some(net) = subject.address().and_then(|address| self.platform.protecting(address)) {
            return Decision::deny(Rule::Protected(net));
        }
        // Nobody outside speaks for it, and whoever did would be trusted by what takes it for itself.
        if subject.name().is_some_and(Name::is_localhost) {
            return Decision::deny(Rule::Localhost);
        }
        let find = |index: &Index, by_name: bool| {
            let name = subject.name().filter(|_| by_name);
            let named = name.and_then(|name| index.by_name(name, port));
            let rule = named.or_else(|| match subject.address() {
                Some(address) => index.by_address(address, port),
                None => index.by_any_address(port),
            });
            rule.cloned()
        };
        if let Some(rule) = find(&self.allow_out, names_open) {
            Decision::allow(rule)
        } else if let Some(rule) = find(&self.deny_out, true) {
            Decision::deny(rule)
        } else if let Some(rule) = find(&self.profiles, names_open) {
            Decision::allow(rule)
        } else if self.denies_names() && port.is_some_and(|port| RESOLVERS.contains(&port)) {
            Decision::deny(Rule::OtherResolver)
        } else if self.internet {
            Decision::allow(Rule::Internet(true))
        } else {
            Decision::deny(Rule::Internet(false))
        }
    }
}

/// What is known of the other end.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Name(&'a Name),
    Address(IpAddr),
    Both(&'a Name, IpAddr),
}

impl<'a> Subject<'a> {
    fn name(self) -> Option<&'a Name> {
        match self {
            Self::Name(name) | Self::Both(name, _) => Some(name),
            Self::Address(_) => None,
        }
    }

    fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) | Self::Both(_, address) => Some(address),
            Self::Name(_) => None,
        }
    }
}

fn parse(field: &'static str, texts: &[String]) -> Result<Vec<Entry>, PolicyError> {
    let parse =
        |(index, text): (usize, &String)| text.parse().map_err(|source| PolicyError::Entry { field, index, source });
    texts.iter().enumerate().map(parse).collect()
}

/// Each profile once, with its entries.
fn chosen_profiles<'a>(
    policy: &'a NetworkPolicy,
    profiles: &'a Profiles,
) -> Result<Vec<(&'a str, &'a [Entry])>, PolicyError> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for name in &policy.egress_profiles {
        if profiles.get(name).is_none() {
            let known = profiles.names().map(str::to_owned).collect();
            return Err(PolicyError::UnknownProfile { name: name.chars().take(64).collect(), known });
        }
        names.insert(name);
    }
    if policy.allow_package_registry_access {
        names.insert(PACKAGE_REGISTRIES);
    }
    Ok(names.into_iter().filter_map(|name| Some((name, profiles.get(name)?))).collect())
}
