//! Other firewalls of this host that may be in the way: what they drop no rule of ours lets through.

use std::process::Command;

use sandpiper_network::dropping_chains;

use super::super::checks::Check;
use super::settings::Settings;

/// For information: rules of such a chain may well let sandboxes pass, and only its owner can say so.
pub(super) fn check(settings: &Settings) -> Check {
    let chains = match Command::new("nft").args(["-j", "list", "chains"]).output() {
        Ok(listing) if listing.status.success() => dropping_chains(&listing.stdout, &settings.name),
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
