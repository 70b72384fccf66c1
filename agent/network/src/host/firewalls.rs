//! Other firewalls of this host that may be in the way: what they drop no rule of ours lets through.

use serde::Deserialize;

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

/// The chains of `listing`, the output of `nft -j list chains`, that drop forwarded packets unless a rule accepts them, each as
/// family, table and name; without those of the table `inet` `own`. A listing that cannot be understood has none: it only
/// serves to warn.
pub fn dropping_chains(listing: &[u8], own: &str) -> Vec<String> {
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
            {"chain": {"family": "inet", "table": "sp", "name": "forward", "handle": 3, "type": "filter",
                       "hook": "forward", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "inet", "table": "sp", "name": "deny", "handle": 4}}
        ]}"#;
        assert_eq!(dropping_chains(listing, "sp"), ["ip filter FORWARD"]);
        assert!(dropping_chains(b"not JSON", "sp").is_empty());
    }
}
