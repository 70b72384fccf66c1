//! Making a slot.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::SlotError;
use super::slot::{Slot, Tools};
use crate::config::Config;
use crate::firewall::{Firewall, Ruleset};
use crate::links::{self, End, Links};
use crate::netns::Netns;
use crate::plan::{GATEWAY, GATEWAY_MAC, GATEWAY6, GUEST, GUEST6, Plan, TAP, UPLINK};
use crate::sysctl;
use crate::tap;
use crate::traffic::TrafficReader;

/// Of a new namespace, before it has links: they take over `default`. A new namespace takes some of its settings over from
/// the host, so nothing is left to chance.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    // A source is believed only where the way back to it goes.
    ("ipv4/conf/{}/rp_filter", "1"),
    ("ipv4/conf/{}/accept_source_route", "0"),
    ("ipv4/conf/{}/accept_redirects", "0"),
    ("ipv4/conf/{}/secure_redirects", "0"),
    ("ipv4/conf/{}/send_redirects", "0"),
    ("ipv4/conf/{}/proxy_arp", "0"),
    ("ipv4/conf/{}/route_localnet", "0"),
    // Answers to ARP for the address of that very link only, and asks with it only.
    ("ipv4/conf/{}/arp_ignore", "1"),
    ("ipv4/conf/{}/arp_announce", "2"),
    ("ipv4/conf/{}/arp_accept", "0"),
    // A guest must not write into the host's log.
    ("ipv4/conf/{}/log_martians", "0"),
];
const SETTINGS6: &[(&str, &str)] = &[
    ("ipv6/conf/{}/disable_ipv6", "0"),
    ("ipv6/conf/{}/forwarding", "1"),
    ("ipv6/conf/{}/accept_ra", "0"),
    ("ipv6/conf/{}/accept_redirects", "0"),
    ("ipv6/conf/{}/accept_source_route", "-1"),
    ("ipv6/conf/{}/autoconf", "0"),
    // All addresses are known to be unique.
    ("ipv6/conf/{}/accept_dad", "0"),
    ("ipv6/conf/{}/dad_transmits", "0"),
    // No link-local addresses: there is nobody to find, and what is not there need not be guarded.
    ("ipv6/conf/{}/addr_gen_mode", "1"),
];

/// Makes the slot of a plan. What an error leaves behind is for [`remove`](super::remove) to take away. Blocks, within the
/// runtime that will serve it.
pub(super) fn make(config: &Config, rules: &Ruleset, plan: &Plan) -> Result<Slot, SlotError> {
    let failed = |what| move |source| SlotError::Slot { what, number: plan.number, source };
    let netns = Netns::create(&plan.name).map_err(failed("make the namespace of"))?;
    let tap = netns.run(prepare).map_err(failed("prepare"))?;
    let ipv6 =
        links::here(async |links| join(links, config, plan, &netns).await).map_err(failed("join the host to"))?;
    netns.run(|| links::here(async |links| furnish(links, config, plan, ipv6).await)).map_err(failed("furnish"))?;
    let firewall = Firewall::open(&netns).and_then(|firewall| firewall.load(rules).map(|()| firewall));
    let firewall = firewall.map_err(|source| SlotError::Firewall { number: plan.number, source })?;
    let tools = Tools::open(firewall, &netns, &plan.meter, true);
    let tools = tools.map_err(|source| SlotError::Tools { number: plan.number, source })?;
    Ok(slot(config, plan, netns, Some(tap), Some(tools)))
}

/// The slot of a plan that was made by an earlier process. Blocks.
pub(super) fn find(config: &Config, plan: &Plan) -> io::Result<Slot> {
    let netns = Netns::open(&plan.name)?;
    links::here(async |links| links.index(&plan.link).await)?;
    netns.run(|| links::here(async |links| links.index(TAP).await))?;
    Ok(slot(config, plan, netns, None, None))
}

fn slot(config: &Config, plan: &Plan, netns: Netns, tap: Option<OwnedFd>, tools: Option<Tools>) -> Slot {
    let (number, name, meter, mtu) = (plan.number, plan.name.clone(), plan.meter.clone(), config.mtu);
    let netns = Arc::new(netns);
    let traffic = Arc::new(TrafficReader::new(Arc::clone(&netns)));
    Slot { number, name, meter, netns, traffic, mtu, tap: Mutex::new(tap), tools: Mutex::new(tools) }
}

/// In the slot: settings, and the tap.
fn prepare() -> io::Result<OwnedFd> {
    for (key, value) in SETTINGS {
        set_for_all(key, value)?;
    }
    if !sysctl::links("ipv6")?.is_empty() {
        for (key, value) in SETTINGS6 {
            set_for_all(key, value)?;
        }
    }
    tap::create()
}

/// Sets one of the links' settings for those that are there and those that will be.
fn set_for_all(key: &str, value: &str) -> io::Result<()> {
    for links in ["all", "default"] {
        sysctl::set(&key.replace("{}", links), value)?;
    }
    Ok(())
}

/// On the host: the pair of links, and the way to the slot. Returns whether there is one for IPv6 too.
async fn join(links: &Links, config: &Config, plan: &Plan, netns: &Netns) -> io::Result<bool> {
    let (here, there) = (End { name: &plan.link, mac: plan.host.mac }, End { name: UPLINK, mac: plan.slot.mac });
    links.add_veth(here, there, netns.as_fd(), config.mtu).await?;
    let link = &plan.link;
    for (key, value) in [("rp_filter", "1"), ("accept_redirects", "0"), ("send_redirects", "0"), ("arp_ignore", "1")] {
        sysctl::set(&format!("ipv4/conf/{link}/{key}"), value)?;
    }
    let ipv6 = sysctl::speaks_ipv6(link)?;
    if ipv6 {
        for (key, value) in [("accept_ra", "0"), ("accept_redirects", "0"), ("autoconf", "0"), ("addr_gen_mode", "1")] {
            sysctl::set(&format!("ipv6/conf/{link}/{key}"), value)?;
        }
    }
    let index = links.index(link).await?;
    links.set_up(index).await?;
    for (net, neighbour) in plan.host.nets().into_iter().zip(plan.slot.addresses()) {
        if net.addr().is_ipv4() || ipv6 {
            links.add_address(index, net).await?;
            links.set_neighbour(index, neighbour, plan.slot.mac).await?;
        }
    }
    Ok(ipv6)
}

/// In the slot: addresses and routes on both sides. `ipv6` says whether the host takes packets of IPv6; without it the slot
/// answers at once that there is no way, which is what makes a guest take IPv4.
async fn furnish(links: &Links, config: &Config, plan: &Plan, ipv6: bool) -> io::Result<()> {
    let loopback = links.index("lo").await?;
    links.set_up(loopback).await?;

    // Only the guest itself is a neighbour, not all that its prefix has room for: the kernel's memory of neighbours is one
    // for all namespaces.
    let tap = links.index(TAP).await?;
    links.shape(tap, GATEWAY_MAC, config.mtu).await?;
    links.set_up(tap).await?;
    for (gateway, guest) in [(IpAddr::from(GATEWAY), IpAddr::from(GUEST)), (GATEWAY6.into(), GUEST6.into())] {
        if gateway.is_ipv4() || sysctl::speaks_ipv6(TAP)? {
            links.add_address(tap, gateway.into()).await?;
            links.add_route(tap, guest.into(), None).await?;
        }
    }

    let uplink = links.index(UPLINK).await?;
    links.set_up(uplink).await?;
    let everything: [IpNet; 2] =
        [Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into(), Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into()];
    for ((net, host), everything) in plan.slot.nets().into_iter().zip(plan.host.addresses()).zip(everything) {
        if net.addr().is_ipv4() || ipv6 {
            links.add_address(uplink, net).await?;
            links.set_neighbour(uplink, host, plan.host.mac).await?;
            links.add_route(uplink, everything, Some(host)).await?;
        }
    }
    Ok(())
}
