//! Ranges that are not the Internet, or not for everybody: one table for the two who must keep out of them.
//!
//! Sandboxes are kept out by [`crate::Platform`], which an operator may open. Webhooks go to [public addresses](is_public)
//! only, because a merchant chooses where they go and none needs more; so they are kept out of more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// A range, and who is kept out of it.
struct Special {
    net: IpNet,
    sandboxes: bool,
    webhooks: bool,
}

const SPECIAL: [Special; 32] = [
    both(v4([0, 0, 0, 0], 8)),                     // this network (RFC 1122)
    both(v4([10, 0, 0, 0], 8)),                    // private (RFC 1918)
    both(v4([100, 64, 0, 0], 10)),                 // shared (RFC 6598): the slots' own addresses are in it
    both(v4([127, 0, 0, 0], 8)),                   // loopback
    both(v4([168, 63, 129, 16], 32)),              // a cloud's metadata and agents
    both(v4([169, 254, 0, 0], 16)),                // link-local, and the metadata of most clouds
    both(v4([172, 16, 0, 0], 12)),                 // private
    both(v4([192, 0, 0, 0], 24)),                  // protocol assignments (RFC 6890)
    webhooks(v4([192, 0, 2, 0], 24)),              // documentation (RFC 5737)
    webhooks(v4([192, 88, 99, 0], 24)),            // 6to4 relays, deprecated (RFC 7526)
    both(v4([192, 168, 0, 0], 16)),                // private
    webhooks(v4([198, 18, 0, 0], 15)),             // benchmarks (RFC 2544)
    webhooks(v4([198, 51, 100, 0], 24)),           // documentation
    webhooks(v4([203, 0, 113, 0], 24)),            // documentation
    both(v4([224, 0, 0, 0], 4)),                   // multicast
    both(v4([240, 0, 0, 0], 4)),                   // reserved, and broadcast
    webhooks(v6([0, 0, 0, 0, 0, 0], 3)),           // all but 2000::/3 may be assigned for anything (RFC 4291)
    webhooks(v6([0x4000, 0, 0, 0, 0, 0], 2)),      // likewise
    webhooks(v6([0x8000, 0, 0, 0, 0, 0], 1)),      // likewise
    sandboxes(v6([0, 0, 0, 0, 0, 0], 96)),         // unspecified, loopback, IPv4 within (RFC 4291, section 2.5.5.1)
    sandboxes(v6([0, 0, 0, 0, 0xffff, 0], 96)),    // IPv4, translated (RFC 2765)
    sandboxes(NAT64),                              // every IPv4 address again
    sandboxes(v6([0x64, 0xff9b, 1, 0, 0, 0], 48)), // the same, locally (RFC 8215)
    webhooks(v6([0x2001, 0, 0, 0, 0, 0], 23)),     // protocol assignments (RFC 2928)
    sandboxes(v6([0x2001, 0, 0, 0, 0, 0], 32)),    // Teredo among them: IPv4 within
    webhooks(v6([0x2001, 0xdb8, 0, 0, 0, 0], 32)), // documentation (RFC 3849)
    both(v6([0x2002, 0, 0, 0, 0, 0], 16)),         // 6to4: IPv4 within
    webhooks(v6([0x3fff, 0, 0, 0, 0, 0], 20)),     // documentation (RFC 9637)
    sandboxes(v6([0xfc00, 0, 0, 0, 0, 0], 7)),     // private (RFC 4193)
    sandboxes(v6([0xfe80, 0, 0, 0, 0, 0], 10)),    // link-local
    sandboxes(v6([0xfec0, 0, 0, 0, 0, 0], 10)),    // site-local, deprecated (RFC 3879)
    sandboxes(v6([0xff00, 0, 0, 0, 0, 0], 8)),     // multicast
];

/// IPv4 behind NAT64 (RFC 6052): for webhooks as public as the IPv4 address in its last four bytes.
const NAT64: IpNet = v6([0x64, 0xff9b, 0, 0, 0, 0], 96);

const fn both(net: IpNet) -> Special {
    Special { net, sandboxes: true, webhooks: true }
}

const fn sandboxes(net: IpNet) -> Special {
    Special { net, sandboxes: true, webhooks: false }
}

const fn webhooks(net: IpNet) -> Special {
    Special { net, sandboxes: false, webhooks: true }
}

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length)
}

/// All groups but the last two.
pub(crate) const fn v6([a, b, c, d, e, f]: [u16; 6], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, 0, 0)), length)
}

/// What no sandbox reaches, unless the operator opens it.
pub(crate) fn kept_from_sandboxes() -> impl Iterator<Item = IpNet> {
    SPECIAL.iter().filter(|special| special.sandboxes).map(|special| special.net)
}

/// Whether an address belongs to the Internet, as webhooks take it.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V6(within) if NAT64.contains(&address) => {
            let [.., a, b, c, d] = within.octets();
            is_public(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
        }
        _ => !SPECIAL.iter().any(|special| special.webhooks && special.net.contains(&address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_kept_out_of_more_and_sandboxes_of_nothing_else() {
        let only_webhooks: Vec<IpNet> = SPECIAL.iter().filter(|one| !one.sandboxes).map(|one| one.net).collect();
        let expected = [
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "::/3",
            "4000::/2",
            "8000::/1",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
        ];
        assert_eq!(only_webhooks, expected.map(|net| net.parse().unwrap()));
        // But for what is translated, which is judged by the address within.
        let open_to_webhooks = |net: &IpNet| !SPECIAL.iter().any(|one| one.webhooks && one.net.contains(net));
        assert!(kept_from_sandboxes().all(|net| !open_to_webhooks(&net)));
        assert!(is_public("64:ff9b::808:808".parse().unwrap()) && !is_public("64:ff9b::a00:1".parse().unwrap()));
    }
}
