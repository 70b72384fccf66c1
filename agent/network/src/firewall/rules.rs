//! The rules of a slot, which are loaded when it is made and never change.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::config::Limits;
use crate::plan::{GATEWAY, GATEWAY6, GUEST, GUEST6, TAP, UPLINK};
use crate::shared::PROXY_PORT;

const SLOT: &str = include_str!("slot.nft");
const FAMILY: &str = include_str!("family.nft");

/// Most addresses of names at the same time, in each tier, for each family of addresses, with a port and without.
pub(super) const MOST_PINS: usize = 4096;
/// How often pins that have expired are cleared away. They take room until then, and live for a minute at least.
const PINS_CLEARED: Duration = Duration::from_secs(30);
/// How long a denied destination is remembered after the last attempt to reach it.
pub(super) const DENIED_LIFE: Duration = Duration::from_secs(3600);
/// How often denied destinations that have expired are cleared away.
const DENIED_CLEARED: Duration = Duration::from_secs(300);
/// Most denied destinations that are remembered, for each family of addresses.
const MOST_DENIED: usize = 2048;

/// What `nft` loads.
pub(super) fn ruleset(limits: &Limits) -> String {
    let family = |name: &str, version: &str, ip: &str, address: &str, gateway: String| {
        let values = [
            ("name", name.to_owned()),
            ("v", version.to_owned()),
            ("ip", ip.to_owned()),
            ("type", address.to_owned()),
            ("gateway", gateway),
            ("pins", MOST_PINS.to_string()),
            ("pins_cleared", PINS_CLEARED.as_secs().to_string()),
            ("denied", MOST_DENIED.to_string()),
            ("denied_life", DENIED_LIFE.as_secs().to_string()),
            ("denied_cleared", DENIED_CLEARED.as_secs().to_string()),
        ];
        fill_in(FAMILY, &values)
    };
    let families = [
        family("IPv4", "4", "ip", "ipv4_addr", GATEWAY.to_string()),
        family("IPv6", "6", "ip6", "ipv6_addr", GATEWAY6.to_string()),
    ];
    let values = [
        ("tap", TAP.to_owned()),
        ("up", UPLINK.to_owned()),
        ("guest4", GUEST.to_string()),
        ("guest6", GUEST6.to_string()),
        ("guest6_hex", hexadecimal(GUEST6)),
        ("gateway4", GATEWAY.to_string()),
        ("gateway6", GATEWAY6.to_string()),
        ("proxy", PROXY_PORT.to_string()),
        ("packets", limits.packets.to_string()),
        ("new_connections", limits.new_connections.to_string()),
        ("connections", limits.connections.to_string()),
        ("families", families.join("\n")),
    ];
    fill_in(SLOT, &values)
}

/// Puts values where their names stand in braces. nft's own braces have spaces or sets in them, never a lone word.
fn fill_in(template: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// How nft wants a number of 128 bits.
fn hexadecimal(address: Ipv6Addr) -> String {
    format!("{:#034x}", u128::from(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_filled_in() {
        let ruleset = ruleset(&Limits::default());
        let lone =
            |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let left = ruleset.split('{').skip(1).filter_map(|rest| rest.split_once('}')).find(|(word, _)| lone(word));
        assert_eq!(left, None);
        assert!(ruleset.contains("@th,64,128 0xfd5a005a000000000000000000000002 accept"));
    }
}
