//! Pins: addresses that a name was resolved to, told to the firewall for as long as the answer may be used.
//!
//! A rule about a name is a rule about addresses that nobody knows beforehand. Whoever resolves the name pins what it found
//! before the guest learns it, so that the guest's first packet already meets the rule.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_durable::blocking;
use sandpiper_policy::PinTier;
use tokio::sync::Semaphore;

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
    /// They hold when this returns. Blocks while the kernel is busy with the slot's rules.
    fn pin(&self, pins: &[Pinned]) -> io::Result<()>;
}

/// Threads of this process that pin at a time. More sandboxes wait: each pins one answer after the other.
static PINNING: Semaphore = Semaphore::const_new(8);

/// Pins on a thread that may block, and does `then` with it once they hold. Both come about even if nobody waits any more.
pub(crate) async fn pin(
    pins: Arc<dyn Pins>,
    wanted: Vec<Pinned>,
    then: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let permit = PINNING.acquire().await.map_err(io::Error::other)?;
    let work = move || {
        let _permit = permit;
        pins.pin(&wanted)?;
        then();
        Ok(())
    };
    blocking(work).await
}
