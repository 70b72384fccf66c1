//! The parts that entries and destinations are written with: hosts, addresses, prefixes, ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use thiserror::Error;

use crate::name::NameError;

/// Longest text that can be an entry or a destination: a name of 253 letters, and what stands around it.
const MAX_TEXT: usize = 280;

/// Most letters of a refused text that an error repeats.
const MAX_QUOTED: usize = 80;

/// What is wrong with an entry or a destination, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    #[error("it is empty; write a host name, an address or a range")]
    Empty,
    #[error("it is longer than any name")]
    TooLong,
    #[error("write names beyond ASCII in punycode (`xn--…`)")]
    NotAscii,
    #[error("leave out spaces and control characters; one entry names one host")]
    Space,
    #[error("leave out the scheme (`https://`); write the host, and `:443` to mean one port only")]
    Scheme,
    #[error("leave out the user before `@`")]
    User,
    #[error("leave out the path; entries name hosts, not pages")]
    Path,
    #[error("`*` stands for whole labels at the start only, as `*.example.test`; all addresses are 0.0.0.0/0 and ::/0")]
    Wildcard,
    #[error("a label does not begin or end with `-`")]
    Hyphen,
    #[error("this is not an IPv6 address; with a port, write `[address]:port` or `[address/length]:port`")]
    Ipv6,
    #[error("brackets hold one IPv6 address or range, and only `:port` follows: `[2001:db8::7]:443`")]
    Brackets,
    #[error("the length of the prefix is a number from 0 to {0}")]
    Prefix(u8),
    #[error("the address is not the first of its range; write {0} for the range, or the address alone")]
    HostBits(IpNet),
    #[error("a port is a number from 1 to 65535")]
    Port,
    #[error("begin with `tcp:`, `udp:` or `icmp:`")]
    Protocol,
    #[error("a port must follow, as in `tcp:example.test:443` or `tcp:[2001:db8::7]:443`")]
    NoPort,
    #[error("ICMP has no ports")]
    PortOfIcmp,
    #[error("{0}")]
    Name(#[from] NameError),
}

/// What goes for every text before it is taken apart; the most frequent mistakes get a hint of their own here.
pub(crate) fn check_text(text: &str) -> Result<(), Problem> {
    let refused = [
        (text.is_empty(), Problem::Empty),
        (text.len() > MAX_TEXT, Problem::TooLong),
        (text.contains(|c: char| c.is_whitespace() || c.is_control()), Problem::Space),
        (!text.is_ascii(), Problem::NotAscii),
        (text.contains("://"), Problem::Scheme),
        (text.contains('@'), Problem::User),
    ];
    refused.into_iter().find_map(|(is_so, problem)| is_so.then_some(Err(problem))).unwrap_or(Ok(()))
}

/// Takes `host`, `host:port`, `[v6]`, `[v6]:port` and `v6` apart; the host has colons exactly if it must be IPv6.
pub(crate) fn split_port(text: &str) -> Result<(&str, Option<NonZeroU16>), Problem> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(Problem::Brackets)?;
        if !host.contains(':') {
            return Err(Problem::Brackets);
        }
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(parse_port(port)?),
            None if rest.is_empty() => None,
            None => return Err(Problem::Brackets),
        };
        return Ok((host, port));
    }
    match text.split_once(':') {
        // Two colons or more are an IPv6 address, which without brackets leaves no room for a port.
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(parse_port(port)?))),
        None => Ok((text, None)),
    }
}

/// The address in a text that [`split_port`] gave; none if it is a name.
pub(crate) fn parse_address(host: &str) -> Result<Option<IpAddr>, Problem> {
    if host.contains(':') {
        return host.parse::<Ipv6Addr>().map(|address| Some(address.into())).map_err(|_| Problem::Ipv6);
    }
    Ok(host.parse::<Ipv4Addr>().ok().map(IpAddr::from))
}

/// The range `address/length`. One in IPv4-mapped form is the IPv4 range.
pub(crate) fn parse_net(address: IpAddr, length: &str) -> Result<IpNet, Problem> {
    if length.contains(':') {
        return Err(Problem::Ipv6);
    }
    let max = if address.is_ipv4() { 32 } else { 128 };
    let length = parse_number(length).and_then(|length| u8::try_from(length).ok()).ok_or(Problem::Prefix(max))?;
    let net = IpNet::new(address, length).map_err(|_| Problem::Prefix(max))?;
    if net.trunc() != net {
        return Err(Problem::HostBits(unmapped(net.trunc())));
    }
    Ok(unmapped(net))
}

/// The one address as a range.
pub(crate) fn single(address: IpAddr) -> IpNet {
    unmapped(IpNet::from(address))
}

fn unmapped(net: IpNet) -> IpNet {
    match (net.addr().to_canonical(), net.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(length)) if net.addr().is_ipv6() => {
            IpNet::new(address.into(), length).unwrap_or(net)
        }
        _ => net,
    }
}

fn parse_port(text: &str) -> Result<NonZeroU16, Problem> {
    parse_number(text).and_then(NonZeroU16::new).ok_or(Problem::Port)
}

/// A number in digits alone, without leading zeros.
fn parse_number(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// A refused text for an error message: as much of it as helps to find it.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
