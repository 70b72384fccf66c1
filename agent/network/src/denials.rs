//! What a sandbox was kept from reaching by name: counted, and the last destinations remembered.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use sandpiper_policy::{Name, Rule};
use sandpiper_protocol::agent::Denied;

/// Destinations that are remembered. A guest that tries more of them pushes the oldest out.
const REMEMBERED: usize = 128;

/// Where a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A name was not resolved.
    Dns,
    /// By a request's `Host`.
    Http,
    /// By the server name in a TLS handshake.
    Tls,
}

impl Seen {
    fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Http => "http",
            Self::Tls => "tls",
        }
    }
}

/// What the guest asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    Name(Name),
    Address(IpAddr),
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The denials of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    total: u64,
    /// Newest first.
    entries: VecDeque<Denied>,
}

impl Denials {
    pub(crate) fn record(&self, seen: Seen, wanted: &Wanted, port: Option<u16>, rule: &Rule) {
        let mut denied = Denied {
            time: Timestamp::now(),
            protocol: seen.as_str().into(),
            host: wanted.to_string(),
            port,
            rule: rule.to_string(),
            count: 1,
        };
        let mut inner = self.lock();
        inner.total += 1;
        let same = |entry: &Denied| {
            entry.protocol == denied.protocol
                && entry.host == denied.host
                && entry.port == denied.port
                && entry.rule == denied.rule
        };
        let known = inner.entries.iter().position(same);
        if let Some(earlier) = known.and_then(|at| inner.entries.remove(at)) {
            denied.count += earlier.count;
        }
        inner.entries.truncate(REMEMBERED - 1);
        inner.entries.push_front(denied);
    }

    /// How many there were, also those that are no longer remembered.
    pub(crate) fn total(&self) -> u64 {
        self.lock().total
    }

    /// Newest first.
    pub(crate) fn list(&self) -> Vec<Denied> {
        self.lock().entries.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deny(denials: &Denials, host: &str) {
        denials.record(Seen::Dns, &Wanted::Name(host.parse().unwrap()), None, &Rule::Internet(false));
    }

    #[test]
    fn the_same_destination_is_one_entry_that_moves_to_the_front() {
        let denials = Denials::default();
        for host in ["a.example.test", "b.example.test", "a.example.test"] {
            deny(&denials, host);
        }
        let seen: Vec<_> = denials.list().into_iter().map(|entry| (entry.host, entry.count)).collect();
        assert_eq!(seen, [("a.example.test".to_owned(), 2), ("b.example.test".to_owned(), 1)]);
    }

    #[test]
    fn a_flood_of_names_is_counted_and_only_the_last_are_remembered() {
        let denials = Denials::default();
        for number in 0..1000 {
            deny(&denials, &format!("n{number}.example.test"));
        }
        assert_eq!(denials.total(), 1000);
        let list = denials.list();
        assert_eq!(list.len(), REMEMBERED);
        assert_eq!(list[0].host, "n999.example.test");
    }
}
