//! Entries of `allow_out`, `deny_out` and profiles: a host or a range, perhaps with a port.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use crate::name::Name;
use crate::syntax::{self, Problem};

/// Where an entry points.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Name(Name),
    /// `*.name`: all names below it, not the name itself.
    Subdomains(Name),
    /// An address, or a range without host bits. Never in IPv4-mapped form.
    Net(IpNet),
}

/// One entry; the crate's documentation has the table of what can be written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub target: Target,
    /// Of TCP and UDP. Without it, everything.
    pub port: Option<NonZeroU16>,
}

/// A text that is no entry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no entry: {problem}")]
pub struct EntryError {
    /// The text, cut short if it is long.
    pub text: String,
    pub problem: Problem,
}

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        parse(text).map_err(|problem| EntryError { text: syntax::quoted(text), problem })
    }
}

fn parse(text: &str) -> Result<Entry, Problem> {
    syntax::check_text(text)?;
    let (host, port) = match syntax::split_port(text) {
        // `host/path:x` is first of all a path.
        Err(Problem::Port) if is_path(text) => return Err(Problem::Path),
        split => split?,
    };
    Ok(Entry { target: parse_target(host)?, port })
}

fn parse_target(host: &str) -> Result<Target, Problem> {
    if let Some((address, length)) = host.split_once('/') {
        let address = syntax::parse_address(address)?.ok_or(Problem::Path)?;
        return Ok(Target::Net(syntax::parse_net(address, length)?));
    }
    if let Some(address) = syntax::parse_address(host)? {
        return Ok(Target::Net(syntax::single(address)));
    }
    if host.is_empty() {
        return Err(Problem::Empty);
    }
    match host.strip_prefix("*.") {
        Some(name) => Ok(Target::Subdomains(parse_name(name)?)),
        None => Ok(Target::Name(parse_name(host)?)),
    }
}

/// Stricter than [`Name`], which also has to hold what guests look up: nobody writes such a hyphen on purpose.
fn parse_name(text: &str) -> Result<Name, Problem> {
    if text.is_empty() || text.contains('*') {
        return Err(Problem::Wildcard);
    }
    if text.split('.').any(|label| label.starts_with('-') || label.ends_with('-')) {
        return Err(Problem::Hyphen);
    }
    Ok(text.parse()?)
}

fn is_path(text: &str) -> bool {
    text.split_once('/').is_some_and(|(host, _)| !matches!(syntax::parse_address(host), Ok(Some(_))))
}

/// As it is written, in its shortest form.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.port) {
            (Target::Net(net @ IpNet::V6(_)), Some(_)) => write!(f, "[{}]", NetText(*net)),
            (Target::Net(net), _) => NetText(*net).fmt(f),
            (Target::Name(name), _) => name.fmt(f),
            (Target::Subdomains(name), _) => write!(f, "*.{name}"),
        }?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// A range of one address is written as the address.
struct NetText(IpNet);

impl fmt::Display for NetText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}
