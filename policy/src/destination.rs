//! Destinations, about which a policy decides: `tcp:host:port`, `udp:host:port`, `icmp:host`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use crate::name::Name;
use crate::syntax::{self, Problem};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    /// ICMPv6 to an IPv6 address.
    Icmp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Name(Name),
    Address(IpAddr),
}

/// What a packet or a connection goes to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    pub protocol: Protocol,
    pub host: Host,
    /// None for ICMP.
    pub port: Option<u16>,
}

/// A text that is no destination.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no destination: {problem}")]
pub struct DestinationError {
    /// The text, cut short if it is long.
    pub text: String,
    pub problem: Problem,
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        parse(text).map_err(|problem| DestinationError { text: syntax::quoted(text), problem })
    }
}

fn parse(text: &str) -> Result<Destination, Problem> {
    syntax::check_text(text)?;
    let (protocol, rest) = text.split_once(':').ok_or(Problem::Protocol)?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "icmp" => Protocol::Icmp,
        _ => return Err(Problem::Protocol),
    };
    let (host, port) = syntax::split_port(rest)?;
    let host = match syntax::parse_address(host)? {
        Some(address) => Host::Address(address),
        None if host.is_empty() => return Err(Problem::Empty),
        None => Host::Name(host.parse().map_err(Problem::Name)?),
    };
    match (protocol, port) {
        (Protocol::Icmp, Some(_)) => Err(Problem::PortOfIcmp),
        (Protocol::Tcp | Protocol::Udp, None) => Err(Problem::NoPort),
        (_, port) => Ok(Destination { protocol, host, port: port.map(Into::into) }),
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (Host::Address(IpAddr::V6(address)), Some(port)) => write!(f, "{}:[{address}]:{port}", self.protocol),
            (host, Some(port)) => write!(f, "{}:{host}:{port}", self.protocol),
            (host, None) => write!(f, "{}:{host}", self.protocol),
        }
    }
}
