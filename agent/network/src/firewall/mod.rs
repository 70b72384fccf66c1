//! The firewall of a slot: what a guest may send, and whom it may speak with.
//!
//! The rules (`slot.nft`) are the same for every sandbox: `nft` translates them when the agent starts, and each slot is given what
//! the kernel made of them ([`Ruleset`]). What differs, the guest's Ethernet address, its policy and the addresses of names, are
//! elements of sets. Both are batches that this module sends instead of `nft`: microseconds rather than tens of milliseconds, and
//! the kernel waits for nobody.
//!
//! ```text
//!   tap0 ──▶ ingress ──────▶ prerouting ───────────────────────────────▶ forward ──▶ masquerade ──▶ up0
//!            the guest's     mark is current? ── yes ──▶ pass    │
//!            own addresses,  else decide:                        ├─▶ redirection ──▶ proxy   (a name decides)
//!            packets/s        allow  mark, pass                  └─▶ input ──▶ forwarder, echo
//!                             proxy  mark, pass, redirected
//!                             deny   count, remember, reject
//! ```
//!
//! * **A decision** goes through the tiers as [`sandpiper_policy`] has them. It is made once for a connection, and kept in the
//!   connection's mark: the generation of the policy that allowed it.
//! * **A new policy** is one transaction, which also makes its generation the current one. Connections with an older mark are
//!   decided again, at their next packet in either direction, by where they went when they began. So one that is allowed still
//!   goes on without a lost packet, and one that is not is cut.
//! * **Before there is a policy** nothing passes, and before the guest's address is known not even ARP does.
//! * **A pin** opens nothing for TCP to ports 80 and 443 but the way to the proxy, because the name decides there.
//! * **What is forwarded** is counted where it is, behind every decision: what is denied is never part of it.
//! * All that a guest can make grow is bounded: pins, denied destinations, connections, packets and new connections per
//!   second, and the answers to what is denied.

mod batch;
mod elements;
mod ranges;
mod report;
mod rules;
mod ruleset;
mod socket;
mod tables;
mod wire;

use std::io;
use std::sync::Arc;

use sandpiper_policy::Policy;
use sandpiper_protocol::interval::Bytes;

use self::batch::Batch;
pub use self::report::{DeniedPacket, Totals};
pub use self::ruleset::Ruleset;
use self::socket::{Refused, Socket};
pub(crate) use self::tables::Tables;
use crate::netns::Netns;
use crate::nft::NftError;
use crate::pin::{Pinned, Pins};

/// Why a slot's firewall did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    #[error("Cannot enter the slot's network namespace")]
    Enter(#[source] io::Error),
    #[error("Cannot load the rules of slots")]
    Load(#[source] NftError),
    #[error("The kernel rejected the slot's rules, which it had from `nft` before; nothing was loaded")]
    Rules(#[source] io::Error),
    #[error("The kernel rejected the change to the slot's set `{set}`; nothing was changed")]
    Change { set: &'static str, source: io::Error },
    #[error("Cannot read from the slot's firewall")]
    Read(#[source] io::Error),
}

/// The firewall of one slot. Clones are the same. What it does waits for the kernel only: tens of microseconds, and
/// milliseconds for [`Firewall::apply`] with thousands of entries and for the reports.
#[derive(Debug, Clone)]
pub struct Firewall {
    socket: Arc<Socket>,
}

impl Firewall {
    /// Opens that of a slot. Keeps the namespace alive. Blocks, briefly.
    pub fn open(netns: &Netns) -> Result<Self, FirewallError> {
        Ok(Self { socket: Arc::new(Socket::open(netns).map_err(FirewallError::Enter)?) })
    }

    /// Gives its rules to a slot that has its links and no rules.
    ///
    /// # Errors
    /// The kernel refused; then there are none.
    pub fn load(&self, rules: &Ruleset) -> Result<(), FirewallError> {
        self.socket.commit(rules.messages()).map_err(|refused| FirewallError::Rules(refused.error))
    }

    /// Says which Ethernet address the guest has: frames from another one do not pass.
    pub fn set_guest(&self, mac: [u8; 6]) -> Result<(), FirewallError> {
        self.commit(|batch| elements::set_guest(batch, mac))
    }

    /// Puts a policy in force in place of the last one, together with the pins that still hold. `generation` has to differ
    /// from that of the last one, in its lower 31 bits; connections are decided again because of it.
    pub fn apply(&self, policy: &Policy, generation: u32, pins: &[Pinned]) -> Result<(), FirewallError> {
        self.commit(|batch| elements::apply(batch, policy, generation, pins))
    }

    /// Adds pins, or renews them: their lives count from now. It fails when there are thousands in one tier.
    pub fn pin(&self, pins: &[Pinned]) -> Result<(), FirewallError> {
        if pins.is_empty() {
            return Ok(());
        }
        self.commit(|batch| elements::pin(batch, pins))
    }

    /// The generation of the policy that is in force, its lower 31 bits; none before there was one. It is the kernel's, so
    /// whoever opens the firewall of a slot that is in use can ask what is enforced there.
    pub fn generation(&self) -> Result<Option<u32>, FirewallError> {
        report::generation(&self.socket).map_err(FirewallError::Read)
    }

    /// What the policy denied lately, in no particular order. Blocks while it is read.
    pub fn denied(&self) -> Result<Vec<DeniedPacket>, FirewallError> {
        report::denied(&self.socket).map_err(FirewallError::Read)
    }

    /// How much did not pass since the slot was made.
    pub fn totals(&self) -> Result<Totals, FirewallError> {
        report::totals(&self.socket).map_err(FirewallError::Read)
    }

    /// The Ethernet address that [`Self::set_guest`] said last.
    ///
    /// # Errors
    /// The kernel did not tell.
    pub fn guest(&self) -> Result<Option<[u8; 6]>, FirewallError> {
        report::guest(&self.socket).map_err(FirewallError::Read)
    }

    /// Bytes of the packets that were forwarded since the slot was made, headers of IP included; `None` of a slot that an agent made
    /// which did not count them.
    ///
    /// # Errors
    /// The kernel did not tell.
    pub fn forwarded(&self) -> Result<Option<Bytes>, FirewallError> {
        report::forwarded(&self.socket).map_err(FirewallError::Read)
    }

    fn commit(&self, changes: impl FnOnce(&mut Batch)) -> Result<(), FirewallError> {
        let mut batch = Batch::new();
        changes(&mut batch);
        let (messages, sets) = batch.finish();
        self.socket.commit(messages).map_err(|Refused { message, error }| {
            let set = message.and_then(|message| sets.get(message)).copied().unwrap_or("batch");
            FirewallError::Change { set, source: error }
        })
    }
}

impl Pins for Firewall {
    fn pin(&self, pins: &[Pinned]) -> io::Result<()> {
        Self::pin(self, pins).map_err(io::Error::other)
    }
}
