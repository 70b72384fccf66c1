//! What the DNS forwarder and the proxy are told.

use sandpiper_policy::{Pin, PinTier, Platform, Policy, Profiles, Resolution, Rule};
use sandpiper_protocol::agent::NetworkPolicy;
use serde_json::json;

use crate::{name, policy};

fn pin(tier: PinTier, port: impl Into<Option<u16>>) -> Pin {
    Pin { tier, port: port.into() }
}

#[test]
fn what_only_the_default_allows_is_resolved_and_not_pinned() {
    let policy = policy(json!({"deny_out": ["bad.example.test"]}));
    assert_eq!(policy.resolve(&name("good.example.test")), Resolution::Allowed { pins: vec![] });
    assert!(policy.denies_names());
}

#[test]
fn a_denied_name_is_not_resolved() {
    let policy = policy(json!({"deny_out": ["bad.example.test", "0.0.0.0/0:25"]}));
    let refused = Resolution::Refused(Rule::DenyOut("bad.example.test".parse().unwrap()));
    assert_eq!(policy.resolve(&name("bad.example.test")), refused);
}

#[test]
fn localhost_is_neither_resolved_nor_dialled() {
    let policy = policy(json!({"allow_out": ["localhost:80", "*.localhost"]}));
    for local in ["localhost", "app.localhost"] {
        assert_eq!(policy.resolve(&name(local)), Resolution::Refused(Rule::Localhost));
        assert_eq!(policy.named(&name(local), 80).rule, Rule::Localhost);
        assert_eq!(policy.vet(&name(local), "198.51.100.7".parse().unwrap(), 80).rule, Rule::Localhost);
    }
}

#[test]
fn a_name_that_nothing_allows_is_not_resolved() {
    let policy = policy(json!({"allow_internet_access": false, "allow_out": ["api.example.test", "198.51.100.0/24"]}));
    assert_eq!(policy.resolve(&name("other.example.test")), Resolution::Refused(Rule::Internet(false)));
    assert!(!policy.denies_names());
}

#[test]
fn a_name_is_pinned_where_entries_name_it() {
    let policy = policy(json!({
        "allow_internet_access": false,
        "allow_package_registry_access": true,
        "allow_out": ["*.example.test:80", "registry.example.test:443", "registry.example.test:80"],
        "deny_out": ["registry.example.test:22"],
    }));
    let pins = vec![
        pin(PinTier::AllowOut, 80),
        pin(PinTier::AllowOut, 443),
        pin(PinTier::DenyOut, 22),
        pin(PinTier::Profile, 443),
    ];
    assert_eq!(policy.resolve(&name("registry.example.test")), Resolution::Allowed { pins });
}

#[test]
fn an_entry_without_port_makes_those_with_ports_needless() {
    let policy = policy(json!({"allow_out": ["api.example.test:443", "*.example.test"], "deny_out": ["*.test"]}));
    let pins = vec![pin(PinTier::AllowOut, None), pin(PinTier::DenyOut, None)];
    assert_eq!(policy.resolve(&name("api.example.test")), Resolution::Allowed { pins });
}

#[test]
fn a_name_that_is_denied_but_for_one_port_is_resolved_and_denied_on_the_others() {
    let policy = policy(json!({"allow_out": ["api.example.test:443"], "deny_out": ["api.example.test"]}));
    let pins = vec![pin(PinTier::AllowOut, 443), pin(PinTier::DenyOut, None)];
    assert_eq!(policy.resolve(&name("api.example.test")), Resolution::Allowed { pins });
}

#[test]
fn who_allows_all_addresses_gets_all_names_and_who_denies_them_none() {
    let open = policy(json!({"allow_internet_access": false, "allow_out": ["0.0.0.0/0:443"]}));
    assert_eq!(open.resolve(&name("any.example.test")), Resolution::Allowed { pins: vec![] });
    let closed = policy(json!({"deny_out": ["0.0.0.0/0"], "allow_out": ["api.example.test"]}));
    let refused = Resolution::Refused(Rule::DenyOut("0.0.0.0/0".parse().unwrap()));
    assert_eq!(closed.resolve(&name("any.example.test")), refused);
    let pins = vec![pin(PinTier::AllowOut, None)];
    assert_eq!(closed.resolve(&name("api.example.test")), Resolution::Allowed { pins });
}

#[test]
fn an_address_is_dialled_only_if_name_and_address_both_may() {
    let policy = policy(json!({
        "allow_out": ["api.example.test:443", "192.0.2.0/24"],
        "deny_out": ["198.51.100.0/24", "bad.example.test"],
    }));
    for (host, address, port, expected) in [
        ("api.example.test", "203.0.113.7", 443, "allow allow_out \"api.example.test:443\""),
        ("api.example.test", "198.51.100.7", 443, "allow allow_out \"api.example.test:443\""),
        ("api.example.test", "198.51.100.7", 80, "deny deny_out \"198.51.100.0/24\""),
        ("api.example.test", "10.0.0.1", 443, "deny protected range 10.0.0.0/8"),
        ("api.example.test", "127.0.0.1", 443, "deny protected range 127.0.0.0/8"),
        ("api.example.test", "::ffff:203.0.113.7", 443, "deny protected range ::ffff:0.0.0.0/96"),
        ("api.example.test", "::ffff:127.0.0.1", 443, "deny protected range ::ffff:0.0.0.0/96"),
        ("api.example.test", "64:ff9b::a00:1", 443, "deny protected range 64:ff9b::/96"),
        ("other.example.test", "203.0.113.7", 443, "allow allow_internet_access true"),
        ("other.example.test", "198.51.100.7", 443, "deny deny_out \"198.51.100.0/24\""),
        ("bad.example.test", "203.0.113.7", 443, "deny deny_out \"bad.example.test\""),
        ("bad.example.test", "192.0.2.7", 443, "allow allow_out \"192.0.2.0/24\""),
    ] {
        let decision = policy.vet(&name(host), address.parse().unwrap(), port);
        assert_eq!(format!("{} {}", decision.verdict, decision.rule), expected, "{host} at {address} port {port}");
    }
    assert!(policy.named(&name("api.example.test"), 443).is_allowed());
    assert!(!policy.named(&name("bad.example.test"), 443).is_allowed());
}

#[test]
fn a_range_that_the_operator_opens_is_as_the_internet() {
    let platform = Platform { allow: vec!["10.1.0.0/16".parse().unwrap()], deny: vec!["10.1.1.0/24".parse().unwrap()] };
    let compile = |json| {
        let policy: NetworkPolicy = serde_json::from_value(json).unwrap();
        Policy::compile(&policy, &Profiles::default(), &platform).unwrap()
    };
    let decide = |policy: &Policy, text: &str| policy.decide(&text.parse().unwrap()).is_allowed();
    let open = compile(json!({}));
    assert!(decide(&open, "tcp:10.1.0.1:80"));
    assert!(!decide(&open, "tcp:10.1.1.1:80"));
    assert!(!decide(&open, "tcp:10.2.0.1:80"));
    let closed = compile(json!({"allow_internet_access": false, "allow_out": ["10.1.0.1"]}));
    assert!(decide(&closed, "tcp:10.1.0.1:80"));
    assert!(!decide(&closed, "tcp:10.1.0.2:80"));
}
