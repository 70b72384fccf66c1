//! What policies mean, from outside: the same questions that the firewall, the forwarder, the proxy and people ask.

mod answers;
mod limits;
mod model;
mod oracle;
mod texts;
mod verdicts;

use sandpiper_policy::{Name, Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;
use serde_json::Value;

/// The policy in `json`, on a host with these profiles.
fn policy(json: Value) -> Policy {
    let profiles = r#"{"profiles": {
        "package-registries": ["registry.example.test:443", "*.mirror.example.test", "203.0.113.80"],
        "ci": ["ci.example.test", "203.0.113.128/25:8080"]
    }}"#;
    let policy: NetworkPolicy = serde_json::from_value(json).unwrap();
    Policy::compile(&policy, &Profiles::from_json(profiles).unwrap(), &Platform::default()).unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}
