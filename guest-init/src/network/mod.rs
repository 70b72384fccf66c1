//! The guest's `eth0`: what the host says that it is, and nothing that anybody on the network says.
//!
//! Applied with every [`Init`](sandpiper_protocol::guest::Init), so it changes what differs and leaves alone what is right.
//! After a restore that is the hardware address, and what was learned of neighbours, who are others now: everything else is
//! the same in every sandbox, so sockets that are open stay open.
//!
//! Of IPv6 the kernel is to do nothing by itself. There are no routers to listen to, an address that is made of the
//! hardware's would be that of the machine this one was cloned from, and to find out whether an address is in use takes a
//! second in which it is of no use.

mod netlink;
mod resolver;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use sandpiper_protocol::guest::GuestNetwork;

use netlink::{Message, Routing};
pub(crate) use resolver::write as write_resolver;

const DEVICE: &str = "eth0";

/// Settings of the device under `/proc/sys/net/ipv6/conf`.
const SETTINGS: [(&str, &str); 5] = [
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("use_tempaddr", "0"),
    ("accept_dad", "0"),
    // IN6_ADDR_GEN_MODE_NONE: not even a link-local one.
    ("addr_gen_mode", "1"),
];

/// Why a guest is not on the network, or not off it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("the machine has no network device {DEVICE}, or something in it has renamed or moved it")]
    NoDevice,
    #[error("{DEVICE} rejects its IPv6 setting {name}: {source}")]
    Setting { name: &'static str, source: io::Error },
    #[error("the kernel does not {what}: {source}")]
    Step { what: &'static str, source: io::Error },
}

/// Makes `eth0` what the host says: with `None`, down. Blocks, for less than a millisecond.
pub(crate) fn apply(network: Option<&GuestNetwork>) -> Result<(), NetworkError> {
    let failed = |what| move |source| NetworkError::Step { what, source };
    let mut routing = Routing::open().map_err(failed("speak about its network"))?;
    match (network, index()) {
        (None, None) => Ok(()),
        (None, Some(device)) => carry_out(&mut routing, [("take eth0 down", link_down(device))]),
        (Some(_), None) => Err(NetworkError::NoDevice),
        (Some(network), Some(device)) => set_up(&mut routing, network, device),
    }
}

fn set_up(routing: &mut Routing, network: &GuestNetwork, device: u32) -> Result<(), NetworkError> {
    // A sandbox that has switched IPv6 off, or whose kernel has none, goes without.
    let has_ipv6 = setting("disable_ipv6").is_ok_and(|text| text.trim() == "0");
    if has_ipv6 && !has_settings() {
        // Before it is up, or the kernel has done by itself what it should not.
        for (name, value) in SETTINGS {
            set(name, value).map_err(|source| NetworkError::Setting { name, source })?;
        }
    }
    let up = ("set eth0 up", link_up(device, network));
    let join = |address: IpAddr, prefix_length: u8, gateway: IpAddr| {
        let address = address_of(device, address, prefix_length);
        [("give eth0 its address", address), ("route through eth0", default_route(device, gateway))]
    };
    let [address, route] = join(network.address.into(), network.prefix_length, network.gateway.into());
    if !has_ipv6 {
        return carry_out(routing, [up, address, route]);
    }
    let [address6, route6] = join(network.address6.into(), network.prefix_length6, network.gateway6.into());
    carry_out(routing, [up, address, route, address6, route6])
}

/// Has the kernel do this at once.
fn carry_out<const N: usize>(routing: &mut Routing, steps: [(&'static str, Message); N]) -> Result<(), NetworkError> {
    let names = steps.each_ref().map(|(what, _)| *what);
    let messages = steps.map(|(_, message)| message);
    routing.request(&messages).map_err(|(at, source)| NetworkError::Step { what: names[at.min(N - 1)], source })
}

/// The device's number, if it is there.
fn index() -> Option<u32> {
    const NAME: &std::ffi::CStr = c"eth0";
    // SAFETY: the function reads a string that ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(NAME.as_ptr()) };
    (index != 0).then_some(index)
}

/// Whether the settings were made before: the last is made when all others are.
fn has_settings() -> bool {
    SETTINGS.last().is_none_or(|(name, value)| setting(name).is_ok_and(|text| text.trim() == *value))
}

fn setting(name: &str) -> io::Result<String> {
    fs::read_to_string(path(name))
}

fn set(name: &str, value: &str) -> io::Result<()> {
    fs::write(path(name), value)
}

fn path(name: &str) -> impl AsRef<Path> {
    format!("/proc/sys/net/ipv6/conf/{DEVICE}/{name}")
}

/// Up, with its hardware address and longest packet. The kernel forgets its neighbours when an address is set, be it the
/// same one (`NETDEV_CHANGEADDR`).
fn link_up(device: u32, network: &GuestNetwork) -> Message {
    link(device, libc::IFF_UP)
        .with(libc::IFLA_ADDRESS, &network.mac)
        .with(libc::IFLA_MTU, &u32::from(network.mtu).to_ne_bytes())
}

fn link_down(device: u32) -> Message {
    link(device, 0)
}

/// `struct ifinfomsg`, of whose flags only `IFF_UP` counts.
fn link(device: u32, flags: libc::c_int) -> Message {
    let kind = [0; 4];
    let change = libc::IFF_UP;
    let parts = [kind, device.to_ne_bytes(), flags.to_ne_bytes(), change.to_ne_bytes()];
    Message::new(libc::RTM_NEWLINK, 0, parts.as_flattened())
}

/// `struct ifaddrmsg`. One that is there already stays.
fn address_of(device: u32, address: IpAddr, prefix_length: u8) -> Message {
    let flags = if address.is_ipv6() { libc::IFA_F_NODAD } else { 0 };
    let kind = [family(address), prefix_length, 0, libc::RT_SCOPE_UNIVERSE];
    let message = Message::new(libc::RTM_NEWADDR, CREATE_OR_REPLACE, [kind, device.to_ne_bytes()].as_flattened());
    let address = octets(address);
    message
        .with(libc::IFA_LOCAL, &address)
        .with(libc::IFA_ADDRESS, &address)
        .with(libc::IFA_FLAGS, &flags.to_ne_bytes())
}

/// `struct rtmsg`.
fn default_route(device: u32, gateway: IpAddr) -> Message {
    let kind = [family(gateway), 0, 0, 0];
    let place = [libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST];
    let flags = [0; 4];
    Message::new(libc::RTM_NEWROUTE, CREATE_OR_REPLACE, [kind, place, flags].as_flattened())
        .with(libc::RTA_GATEWAY, &octets(gateway))
        .with(libc::RTA_OIF, &device.to_ne_bytes())
}

const CREATE_OR_REPLACE: libc::c_int = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;

fn family(address: IpAddr) -> u8 {
    // Both are below 256, and fixed.
    u8::try_from(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).unwrap_or_default()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests;
