//! The entries of one tier, found by name or by address without looking at each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::decision::Rule;
use crate::entry::{Entry, Target};
use crate::name::Name;
use crate::nets::Nets;

/// Entries of one tier, each with the rule that it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    names: HashMap<Name, Ports>,
    /// By the name after `*.`.
    subdomains: HashMap<Name, Ports>,
    ranges: HashMap<IpNet, Ports>,
    /// Lengths of the prefixes in `ranges`, IPv4's and IPv6's.
    lengths: [BTreeSet<u8>; 2],
    nets: Nets,
    /// Rules for all of IPv4, by which names are judged whose addresses are not known.
    all_ipv4: Ports,
}

/// What is said about one target: for some ports, or for all else.
#[derive(Debug, Clone, Default)]
struct Ports {
    any: Option<Rule>,
    ports: BTreeMap<u16, Rule>,
}

impl Ports {
    /// The first of several equal entries stays.
    fn insert(&mut self, port: Option<u16>, rule: Rule) {
        match port {
            Some(port) => drop(self.ports.entry(port).or_insert(rule)),
            None => drop(self.any.get_or_insert(rule)),
        }
    }

    /// Without a port, that is for ICMP: what is said about everything.
    fn get(&self, port: Option<u16>) -> Option<&Rule> {
        port.and_then(|port| self.ports.get(&port)).or(self.any.as_ref())
    }

    fn named(&self) -> impl Iterator<Item = Option<u16>> {
        let any = self.any.as_ref().map(|_| None);
        any.into_iter().chain(self.ports.keys().copied().map(Some))
    }
}

impl Index {
    pub(crate) fn new(entries: impl IntoIterator<Item = (Entry, Rule)>) -> Self {
        let mut index = Self::default();
        let mut nets = Vec::new();
        for (Entry { target, port }, rule) in entries {
            let port = port.map(Into::into);
            let ports = match target {
                Target::Name(name) => index.names.entry(name).or_default(),
                Target::Subdomains(name) => index.subdomains.entry(name).or_default(),
                Target::Net(net) => {
                    nets.push((net, port));
                    index.lengths[family(net.addr())].insert(net.prefix_len());
                    index.ranges.entry(net).or_default()
                }
            };
            ports.insert(port, rule);
        }
        index.nets = Nets::new(nets);
        index.find_all_ipv4();
        index
    }

    /// All of IPv4 may be several ranges together; the widest that begins it gives its name.
    fn find_all_ipv4(&mut self) {
        let mut all = Ports::default();
        for port in self.nets.ports_of_all_ipv4() {
            let first = IpAddr::from([0; 4]);
            let widest = self.ranges_around(first).filter_map(|ports| ports.get(port)).last();
            widest.into_iter().for_each(|rule| all.insert(port, rule.clone()));
        }
        self.all_ipv4 = all;
    }

    /// What is said about the name itself.
    pub(crate) fn by_name(&self, name: &Name, port: Option<u16>) -> Option<&Rule> {
        self.names_around(name).find_map(|ports| ports.get(port))
    }

    /// What is said about every address, so that no name escapes it.
    pub(crate) fn by_any_address(&self, port: Option<u16>) -> Option<&Rule> {
        self.all_ipv4.get(port)
    }

    pub(crate) fn by_address(&self, address: IpAddr, port: Option<u16>) -> Option<&Rule> {
        self.ranges_around(address).find_map(|ports| ports.get(port))
    }

    pub(crate) fn nets(&self) -> &Nets {
        &self.nets
    }

    pub(crate) fn has_names(&self) -> bool {
        !(self.names.is_empty() && self.subdomains.is_empty())
    }

    /// The ports with which entries name this name; None for any port, and then nothing else.
    pub(crate) fn ports_of_name(&self, name: &Name) -> BTreeSet<Option<u16>> {
        let ports: BTreeSet<_> = self.names_around(name).flat_map(Ports::named).collect();
        if ports.contains(&None) { BTreeSet::from([None]) } else { ports }
    }

    /// As [`Index::ports_of_name`], of the ranges by which names are judged.
    pub(crate) fn ports_of_any_address(&self) -> impl Iterator<Item = Option<u16>> {
        self.all_ipv4.named()
    }

    /// Nearest first.
    fn names_around<'a>(&'a self, name: &Name) -> impl Iterator<Item = &'a Ports> {
        let above = name.parents().filter_map(|parent| self.subdomains.get(parent));
        self.names.get(name).into_iter().chain(above)
    }

    /// Narrowest first.
    fn ranges_around(&self, address: IpAddr) -> impl Iterator<Item = &Ports> {
        let lengths = self.lengths[family(address)].iter().rev();
        lengths.filter_map(move |length| self.ranges.get(&IpNet::new(address, *length).ok()?.trunc()))
    }
}

fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}
