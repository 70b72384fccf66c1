//! Decisions: the verdict, and the rule that led to it.

use std::fmt;

use ipnet::IpNet;

use crate::entry::Entry;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Deny,
}

/// What a policy says about a destination, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    pub rule: Rule,
}

impl Decision {
    pub(crate) fn allow(rule: Rule) -> Self {
        Self { verdict: Verdict::Allow, rule }
    }

    pub(crate) fn deny(rule: Rule) -> Self {
        Self { verdict: Verdict::Deny, rule }
    }

    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }
}

/// The rule that decided. Its text is shown to people, in `network explain` and in the list of what was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// A range that protects the platform.
    Protected(IpNet),
    /// A name of the asking machine's own.
    Localhost,
    AllowOut(Entry),
    DenyOut(Entry),
    /// A profile's name, and its entry.
    Profile(String, Entry),
    /// No entry fits, and this is `allow_internet_access`.
    Internet(bool),
    /// UDP to port 443 of something that is allowed for its name only, which QUIC hides.
    HiddenName,
    /// Ports 53 and 853 of a resolver that no entry names, where names are denied.
    OtherResolver,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected(net) => write!(f, "protected range {net}"),
            Self::Localhost => f.write_str("localhost, and every name below it, is the sandbox itself"),
            Self::AllowOut(entry) => write!(f, "allow_out \"{entry}\""),
            Self::DenyOut(entry) => write!(f, "deny_out \"{entry}\""),
            Self::Profile(profile, entry) => write!(f, "profile {profile} \"{entry}\""),
            Self::Internet(allowed) => write!(f, "allow_internet_access {allowed}"),
            Self::HiddenName => f.write_str("allowed by name only, which UDP to port 443 hides"),
            Self::OtherResolver => f.write_str("another resolver, while deny_out has names"),
        }
    }
}
