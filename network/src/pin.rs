//! Pins: addresses that a name was resolved to, told to the firewall for as long as the answer may be used.
//!
//! A rule about a name is a rule about addresses that nobody knows beforehand. Whoever resolves the name pins what it found
//! before the guest learns it, so that the guest's first packet already meets the rule.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use sandpiper_policy::PinTier;

/// An address of a name that a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pinned {
    pub tier: PinTier,
    pub address: IpAddr,
    /// `None`: every port and protocol.
    pub port: Option<u16>,
    /// How long it holds from now on, whatever held before.
    pub life: Duration,
}

/// Takes pins into a sandbox's firewall.
pub trait Pins: Send + Sync + 'static {
    /// They hold when this returns. Waits for nothing but the kernel, so it may be called by asynchronous code.
    fn pin(&self, pins: &[Pinned]) -> io::Result<()>;
}
