//! Policies that are refused, and the largest that is not.

use sandpiper_policy::{MAX_ENTRIES, Platform, Policy, PolicyError, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;

fn compile(policy: &NetworkPolicy, profiles: &Profiles) -> Result<Policy, PolicyError> {
    Policy::compile(policy, profiles, &Platform::default())
}

/// Names, addresses and ranges, each with and without ports.
fn entries(count: usize) -> Vec<String> {
    let make = |number: usize| match number % 4 {
        0 => format!("host-{number}.example.test"),
        1 => format!("*.host-{number}.example.test:443"),
        2 => format!("198.{}.{}.7:443", 18 + number / 65536, number / 256 % 256),
        _ => format!("[2001:db8:{number:x}::/48]:{}", 1 + number % 1000),
    };
    (0..count).map(make).collect()
}

#[test]
fn ten_thousand_entries_are_a_policy_and_one_more_is_not() {
    let mut policy = NetworkPolicy { allow_internet_access: false, ..NetworkPolicy::default() };
    policy.allow_out = entries(MAX_ENTRIES / 2);
    policy.deny_out = entries(MAX_ENTRIES / 2);
    let started = std::time::Instant::now();
    let compiled = compile(&policy, &Profiles::default()).unwrap();
    let took = started.elapsed();
    let started = std::time::Instant::now();
    let decision = compiled.decide(&"tcp:a.b.host-4997.example.test:443".parse().unwrap());
    println!("compiled in {took:?}, decided in {:?}", started.elapsed());
    assert_eq!(decision.rule.to_string(), "allow_out \"*.host-4997.example.test:443\"");

    policy.deny_out.push("one.example.test".to_owned());
    assert_eq!(compile(&policy, &Profiles::default()).unwrap_err(), PolicyError::TooManyEntries(MAX_ENTRIES + 1));
}

#[test]
fn entries_of_profiles_count() {
    let json = serde_json::json!({"profiles": {"large": entries(MAX_ENTRIES)}}).to_string();
    let profiles = Profiles::from_json(&json).unwrap();
    let mut policy = NetworkPolicy { egress_profiles: vec!["large".to_owned(); 2], ..NetworkPolicy::default() };
    assert!(compile(&policy, &profiles).is_ok());
    policy.allow_out = entries(1);
    assert_eq!(compile(&policy, &profiles).unwrap_err(), PolicyError::TooManyEntries(MAX_ENTRIES + 1));
}

#[test]
fn a_wrong_entry_is_found_by_its_field_and_index() {
    let policy = NetworkPolicy { deny_out: vec!["a.test".into(), "a.test/path".into()], ..NetworkPolicy::default() };
    let error = compile(&policy, &Profiles::default()).unwrap_err();
    assert_eq!(error.to_string(), "deny_out[1]");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "\"a.test/path\" is no entry: leave out the path; entries name hosts, not pages");
}

#[test]
fn an_unknown_profile_is_named_beside_those_that_exist() {
    let policy = NetworkPolicy { egress_profiles: vec!["cj".into()], ..NetworkPolicy::default() };
    let profiles = Profiles::from_json(r#"{"profiles": {"ci": [], "mirrors": []}}"#).unwrap();
    let error = compile(&policy, &profiles).unwrap_err();
    assert_eq!(error.to_string(), "There is no egress profile \"cj\"; there are ci, mirrors");
    let error = compile(&policy, &Profiles::default()).unwrap_err();
    assert_eq!(error.to_string(), "There is no egress profile \"cj\"; there are none");
}

#[test]
fn package_registries_without_such_a_profile_are_nothing_to_allow() {
    let policy =
        NetworkPolicy { allow_internet_access: false, allow_package_registry_access: true, ..NetworkPolicy::default() };
    let compiled = compile(&policy, &Profiles::default()).unwrap();
    assert!(!compiled.decide(&"tcp:registry.example.test:443".parse().unwrap()).is_allowed());
}
