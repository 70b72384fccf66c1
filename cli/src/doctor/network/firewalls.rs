//! Other firewalls of this host that may be in the way: what they drop no rule of ours lets through.

use std::process::Command;

use serde::Deserialize;

use super::super::checks::Check;
use super::settings::Settings;

/// For information: rules of such a chain may well let sandboxes pass, and only its owner can say so.
pub(super) fn check(settings: &Settings) -> Check {
    let chains = match Command::new("nft").args(["-j", "list", "chains"]).output() {
        Ok(listing) if listing.status.success() => dropping(&listing.stdout, &settings.name),
        // That nft is missing, or useless, is another check's to tell.
        _ => return Check::ok("firewalls", "unknown: nft does not list them"),
    };
    match chains.first() {
        None => Check::ok("firewalls", "none of this host's chains drops forwarded packets by default"),
        Some(first) => Check::warn(
            "firewalls",
            format!("drop forwarded packets by default: {}", chains.join("; ")),
            format!(
                "unless their rules let `{name}v*` pass already: nft insert rule {first} iifname '\"{name}v*\"' accept; \
                 nft insert rule {first} oifname '\"{name}v*\"' ct state established,related accept",
                name = settings.name,
            ),
        ),
    }
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    chain: Option<Chain>,
}

#[derive(Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
    policy: Option<String>,
}

/// The chains of a listing that drop what is forwarded unless a rule accepts it, but for those of the agent's table. One that
/// cannot be understood has none.
fn dropping(listing: &[u8], own: &str) -> Vec<String> {
    let chains = serde_json::from_slice::<Listing>(listing).map(|listing| listing.nftables).unwrap_or_default();
    let chains = chains.into_iter().filter_map(|item| item.chain);
    chains
        .filter(|chain| chain.hook.as_deref() == Some("forward") && chain.policy.as_deref() == Some("drop"))
        .filter(|chain| chain.family != "inet" || chain.table != own)
        .map(|chain| format!("{} {} {}", chain.family, chain.table, chain.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_drop_what_is_forwarded_are_found() {
        let listing = br#"{"nftables": [
            {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 1, "type": "filter",
                       "hook": "forward", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "handle": 2, "type": "filter",
                       "hook": "input", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "inet", "table": "lab", "name": "forward", "handle": 3, "type": "filter",
                       "hook": "forward", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "inet", "table": "lab", "name": "deny", "handle": 4}}
        ]}"#;
        assert_eq!(dropping(listing, "lab"), ["ip filter FORWARD"]);
        assert!(dropping(b"not JSON", "lab").is_empty());
    }
}
