//! A network policy from a tenant, and what follows from it.
//!
//! The first byte chooses: the rest is a policy in JSON, or an entry, or a destination, or it decides about a situation,
//! entry by entry, and about a host and an address in it.
//!
//! What is accepted means the same once it is written and read again. In a situation, the decisions are those of looking at
//! every entry in turn, and those of the firewall that is filled with the policy's ranges and pins.
#![no_main]

#[path = "../../../policy/tests/policy/model.rs"]
mod model;

use std::fmt::{Debug, Display};
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use model::{Drawn, Situation, Target, firewall, kind};
use sandpiper_fuzz::Input;
use sandpiper_policy::{Decision, Destination, Entry, Platform, Policy, Profiles, Resolution, Verdict};
use sandpiper_protocol::agent::NetworkPolicy;

const HOSTS: [&str; 10] = [
    "a.test",
    "b.test",
    "a.a.test",
    "a.b.test",
    "c.a.b.test",
    "test",
    "localhost",
    "a.localhost",
    "notlocalhost",
    "localhost.test",
];
const ADDRESSES: [&str; 14] = [
    "203.0.113.0",
    "203.0.113.1",
    "203.0.113.7",
    "203.0.113.8",
    "198.51.100.1",
    "10.0.0.1",
    "10.200.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "fd00::1",
    "::1",
    "2001:db8::2",
    "64:ff9b::1",
    "::192.0.2.1",
];
const RANGES: [&str; 12] = [
    "0.0.0.0/0",
    "0.0.0.0/1",
    "128.0.0.0/1",
    "::/0",
    "2001:db8::/32",
    "2001:db8::2/127",
    "10.0.0.0/8",
    "10.0.0.0/9",
    "203.0.113.0/29",
    "203.0.113.0/24",
    "10.0.0.1/32",
    "fc00::/7",
];
const PORTS: [u16; 5] = [22, 53, 80, 443, 853];
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "icmp"];

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    match input.byte() % 4 {
        0 => {
            let Ok(policy) = serde_json::from_slice::<NetworkPolicy>(input.0) else { return };
            let _ = Policy::compile(&policy, &Profiles::default(), &Platform::default());
        }
        1 => survives::<Entry>(input.0),
        2 => survives::<Destination>(input.0),
        _ => judge(&mut input),
    }
}

fn survives<T: FromStr + Display + PartialEq + Debug>(text: &[u8]) {
    let Some(read) = str::from_utf8(text).ok().and_then(|text| text.parse::<T>().ok()) else { return };
    assert_eq!(read.to_string().parse::<T>().ok().as_ref(), Some(&read), "{read}");
}

fn judge(input: &mut Input<'_>) {
    let (host, address) = (input.choose(&HOSTS), address(input));
    let (protocol, port) = (input.choose(&PROTOCOLS), input.choose(&PORTS));
    let settings = input.byte();
    let situation = Situation {
        internet: settings & 1 != 0,
        allow: entries(input),
        deny: entries(input),
        profile: entries(input),
        opened: nets(input, settings >> 1 & 1),
        closed: nets(input, settings >> 2 & 1),
    };
    let policy = situation.policy();
    let named = host.parse().expect("a name");
    let judged = |decision: Decision| (decision.verdict, kind(&decision.rule));
    let port_of = (protocol != "icmp").then_some(port);
    let suffix = port_of.map_or(String::new(), |port| format!(":{port}"));
    let decide =
        |host: &str| judged(policy.decide(&format!("{protocol}:{host}{suffix}").parse().expect("a destination")));

    assert_eq!(decide(host), situation.judge(protocol, Some(host), None, port_of));
    let text = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    assert_eq!(decide(&text), situation.judge(protocol, None, Some(address), port_of));
    assert_eq!(judged(policy.named(&named, port)), situation.judge("tcp", Some(host), None, Some(port)));
    let vetted = judged(policy.vet(&named, address, port));
    assert_eq!(vetted, situation.judge("tcp", Some(host), Some(address), Some(port)));

    let allowed = |port| situation.judge("tcp", Some(host), None, port).0 == Verdict::Allow;
    let is_allowed = allowed(None) || PORTS.into_iter().any(|port| allowed(Some(port)));
    let resolution = policy.resolve(&named);
    assert_eq!(matches!(resolution, Resolution::Allowed { .. }), is_allowed);
    if let Resolution::Allowed { pins } = resolution {
        let expected = situation.judge(protocol, Some(host), Some(address), port_of).0;
        assert_eq!(firewall(&policy, &pins, protocol, address, port_of), expected);
    }
    let expected = situation.judge(protocol, None, Some(address), port_of).0;
    assert_eq!(firewall(&policy, &[], protocol, address, port_of), expected);
}

fn entries(input: &mut Input<'_>) -> Vec<Drawn> {
    let count = input.byte() % 6;
    let mut entry = || {
        let port = input.byte();
        let target = match input.byte() % 5 {
            0 => Target::Name(input.choose(&HOSTS).to_owned()),
            1 => Target::Wildcard(input.choose(&HOSTS).to_owned()),
            2 => Target::Net(input.choose(&RANGES).parse().expect("a range")),
            _ => Target::Net(around(address(input), input.byte())),
        };
        Drawn { target, port: (port & 1 != 0).then(|| PORTS[usize::from(port >> 1) % PORTS.len()]) }
    };
    (0..count).map(|_| entry()).collect()
}

fn nets(input: &mut Input<'_>, count: u8) -> Vec<IpNet> {
    (0..count).map(|_| input.choose(&RANGES).parse().expect("a range")).collect()
}

fn address(input: &mut Input<'_>) -> IpAddr {
    let address = match input.byte() {
        255 => IpAddr::from(input.number::<16>()),
        254 => IpAddr::from(input.number::<4>()),
        known => ADDRESSES[usize::from(known) % ADDRESSES.len()].parse().expect("an address"),
    };
    address.to_canonical()
}

/// A range with this address in it.
fn around(address: IpAddr, length: u8) -> IpNet {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    IpNet::new(address, length % (bits + 1)).expect("a length that there is").trunc()
}
