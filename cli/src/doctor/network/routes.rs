//! Which addresses this host's network uses already, and whether it has a way for IPv6.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use nix::ifaddrs::getifaddrs;

use super::super::checks::Check;
use super::settings::Settings;

/// `RTF_REJECT` of linux/ipv6_route.h: the kernel has such a default route where there is no other.
const REJECT: u32 = 0x200;

/// A range that a link leads to, or has an address in.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    link: String,
    net: Ipv4Net,
}

/// Whether the addresses between host and slots are nobody else's.
pub(super) fn transit(settings: &Settings) -> Check {
    let mut uses = routes(&fs::read_to_string("/proc/net/route").unwrap_or_default());
    // A tunnel's address may have no route of its own, or one in a table of the tunnel's own.
    uses.extend(getifaddrs().into_iter().flatten().filter_map(|address| {
        let net = address.address?.as_sockaddr_in()?.ip().into();
        Some(Use { link: address.interface_name, net })
    }));
    uses.retain(|used| !settings.is_slot(&used.link));
    transit_among(&uses, settings.transit)
}

fn transit_among(uses: &[Use], transit: Ipv4Net) -> Check {
    match conflict(uses, transit) {
        None => Check::ok("transit", format!("{transit} is free for the lines between host and sandboxes")),
        Some(conflict) => {
            // Not from 100.64 on: that is what guests see.
            let mut ranges = (65..=127).map(|second| Ipv4Net::new_assert(Ipv4Addr::new(100, second, 0, 0), 16));
            let free = ranges.find(|range| self::conflict(uses, *range).is_none());
            let free = free.map_or("a private /16 that is free here".to_owned(), |range| format!("\"{range}\""));
            Check::warn(
                "transit",
                format!("{transit}, for the lines between host and sandboxes, is in use here: {conflict}"),
                format!("set [network] transit = {free} in a file, and give it to sandpiper up --agent-settings"),
            )
        }
    }
}

fn conflict(uses: &[Use], transit: Ipv4Net) -> Option<&Use> {
    uses.iter().find(|used| used.net.contains(&transit) || transit.contains(&used.net))
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.net, self.link)
    }
}

/// The routes of /proc/net/route but the default ones. Its addresses are numbers in the order of the wire, printed as if
/// they were in this machine's.
fn routes(text: &str) -> Vec<Use> {
    let address = |hex: &str| u32::from_str_radix(hex, 16).ok().map(|bits| Ipv4Addr::from(bits.to_ne_bytes()));
    let route = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [link, destination, _, _, _, _, _, mask, ..] = fields[..] else { return None };
        let net = Ipv4Net::with_netmask(address(destination)?, address(mask)?).ok()?;
        (net.prefix_len() != 0).then(|| Use { link: link.to_owned(), net })
    };
    text.lines().filter_map(route).collect()
}

/// For information: neither is wrong.
pub(super) fn ipv6() -> Check {
    if has_default_route6(&fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default()) {
        Check::ok("ipv6", "this host has a default route for IPv6, so sandboxes have one too")
    } else {
        Check::ok("ipv6", "this host has no default route for IPv6: sandboxes reach IPv4 addresses only")
    }
}

/// Destination and length of its prefix come first in a line, flags and link last; all numbers are hexadecimal.
fn has_default_route6(text: &str) -> bool {
    text.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [destination, "00", .., flags, link] = fields[..] else { return false };
        let is_used = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & REJECT == 0);
        destination.bytes().all(|byte| byte == b'0') && is_used && link != "lo"
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::checks::Verdict;
    use super::*;

    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
vpn0\t00004064\t00000000\t0001\t0\t0\t0\t0000C0FF\t0\t0\t0
";

    fn used(link: &str, net: &str) -> Use {
        Use { link: link.into(), net: net.parse().unwrap() }
    }

    #[test]
    fn routes_are_read_from_the_kernels_list() {
        // As a machine of the order of x86 prints them.
        assert_eq!(routes(ROUTES), [used("eth0", "192.0.2.0/24"), used("vpn0", "100.64.0.0/10")]);
        assert_eq!(routes("x y\nnoise 1 2 3 4 5 6 zz\n"), []);
    }

    #[test]
    fn a_transit_range_within_or_around_another_is_told_of_with_a_free_one() {
        let transit = "100.65.0.0/16".parse().unwrap();
        let check = transit_among(&[used("eth0", "192.0.2.0/24")], transit);
        assert_eq!(check.verdict, Verdict::Ok);

        let check = transit_among(&[used("vpn0", "100.65.3.4/32"), used("vpn1", "100.66.0.0/15")], transit);
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.ends_with("in use here: 100.65.3.4/32 on vpn0"), "{}", check.found);
        assert!(check.fix.unwrap().contains("transit = \"100.68.0.0/16\""));

        let check = transit_among(&[used("vpn0", "100.64.0.0/10")], transit);
        assert!(check.fix.unwrap().contains("transit = a private /16"));
    }

    #[test]
    fn the_kernels_own_unreachable_default_route_is_none() {
        let line = |length, flags, link| {
            let zero = "0".repeat(32);
            format!("{zero} {length} {zero} 00 {zero} 00000400 00000001 00000000 {flags} {link}\n")
        };
        assert!(has_default_route6(&line("00", "00000003", "eth0")));
        assert!(!has_default_route6(&line("00", "00200200", "lo")));
        assert!(!has_default_route6(&line("40", "00000001", "eth0")));
        assert!(!has_default_route6(""));
    }
}
