//! Having the host's kernel forward packets.
//!
//! What forwarding is for is the host's to say once and for all, so it is switched on where it is off, and never off again:
//! somebody else may rely on it by then. It makes the host forward for whoever sends it packets, not for slots alone; a
//! host on a network that it does not trust has a firewall for that.

use std::io;

use crate::{links, sysctl};

/// Makes the host forward IPv4, and IPv6 if it has a way for it itself. Blocks.
pub(super) fn enable() -> io::Result<()> {
    // Only where it is off: switching it resets other settings of all links.
    if sysctl::get("ipv4/ip_forward")?.as_deref() == Some("0") {
        tracing::info!("enabling IPv4 forwarding");
        sysctl::set("ipv4/ip_forward", "1")?;
    }
    if sysctl::get("ipv6/conf/all/forwarding")?.as_deref() == Some("0")
        && links::here(async |links| links.has_default_route6().await)?
    {
        tracing::info!("enabling IPv6 forwarding");
        // A router does not listen to other routers, and forgets what they said, unless told to with a 2
        // (Documentation/networking/ip-sysctl.rst): the host's own default route may come from them.
        for link in sysctl::links("ipv6")? {
            let key = format!("ipv6/conf/{link}/accept_ra");
            if sysctl::get(&key)?.as_deref() == Some("1") {
                sysctl::set(&key, "2")?;
            }
        }
        sysctl::set("ipv6/conf/all/forwarding", "1")?;
    }
    Ok(())
}
