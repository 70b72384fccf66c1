//! How a sandbox's machine gets its network, and how that changes while it runs.
//!
//! The order is what keeps a guest from ever having more than it may: the slot, the policy in it, and only then a machine
//! that is given the slot's tap. What is written down is the policy that is wanted; a slot tells which one it enforces.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sandpiper_network::{AttachError, Attachment, Network, Slot};
use sandpiper_protocol::agent::{self, DeniedPage, NetworkPolicy};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::GuestNetwork;
use sandpiper_protocol::vmm::{NetConfig, NetLimits};

use super::Context;
use super::record::Record;
use super::registry::ChangeError;
use super::start::StartError;
use super::supervisor::Supervisor;

/// What a monitor is given of a network.
#[derive(Debug)]
pub(super) struct Tap {
    pub(super) config: NetConfig,
    pub(super) fd: OwnedFd,
}

/// A machine's network and the tap to give it, for one that is called `guest`: a slot that enforces `network`, and a device
/// that is no faster than `limits`. Neither on a host without networks.
pub(super) async fn attach(
    context: &Context,
    guest: &str,
    network: &agent::Network,
    limits: NetLimits,
) -> Result<(Option<Attachment>, Option<Tap>), StartError> {
    let Some(host) = context.network() else { return Ok((None, None)) };
    let mac = Slot::mac_of(guest);
    let failed = |error: AttachError| StartError::Host {
        what: "give the sandbox a network",
        source: io::Error::other(error_chain::chain(&error)),
    };
    let attachment = host.attach(mac, network).await.map_err(failed)?;
    match attachment.tap().await {
        Ok(fd) => Ok((Some(attachment), Some(Tap { config: NetConfig { mac, limits }, fd }))),
        Err(source) => {
            attachment.detach().await;
            Err(StartError::Host { what: "open the sandbox's tap", source })
        }
    }
}

/// As [`attach`], for a machine that is nobody's: nothing can be reached.
pub(super) async fn attach_nowhere(
    context: &Context,
    guest: &str,
) -> Result<(Option<Attachment>, Option<Tap>), StartError> {
    let policy = NetworkPolicy { allow_internet_access: false, ..NetworkPolicy::default() };
    attach(context, guest, &agent::Network { version: 0, policy }, limits_of_host(context)).await
}

/// How fast a machine's network may be on this host.
pub(super) fn limits_of_host(context: &Context) -> NetLimits {
    let limits = context.config.network.limits;
    NetLimits { bytes_per_second: limits.bandwidth, packets_per_second: Some(limits.packets.into()) }
}

/// Takes a slot away, if there is one.
pub(super) async fn detach(attachment: Option<Attachment>) {
    if let Some(attachment) = attachment {
        attachment.detach().await;
    }
}

/// What the guest is told of it.
pub(super) fn guest_network(attachment: Option<&Attachment>) -> Option<GuestNetwork> {
    attachment.map(Attachment::guest_network)
}

impl Context {
    /// The network of this host; `None` if it is turned off.
    pub(crate) fn network(&self) -> Option<&Network> {
        self.network.get()
    }
}

impl Supervisor {
    /// Takes over the slot of a machine that ran on without an agent. It has enforced its policy meanwhile.
    pub(super) async fn adopt_network(&mut self) {
        let record = self.record();
        let (Some(host), Some(slot)) = (self.context.network(), record.slot) else { return };
        match host.adopt(slot, Slot::mac_of(&record.id), &record.network).await {
            Ok(attachment) => self.network = Some(attachment),
            Err(error) => {
                let error = error_chain::chain(&error);
                tracing::error!(sandbox = record.id, slot, error, "a sandbox's network cannot be taken over");
                self.log.host(format!("its network is out of order; pause and resume it: {error}"));
            }
        }
    }

    /// Has the sandbox reach what `network` says, from now on or from its next start on. An older policy than it has
    /// changes nothing.
    pub(super) async fn set_network(&mut self, network: agent::Network) -> Result<Arc<Record>, ChangeError> {
        if network.version < self.record().network.version {
            return Ok(self.record());
        }
        if let Some(host) = self.context.network() {
            host.check(&network.policy).map_err(|error| ChangeError::Invalid(error_chain::chain(&error)))?;
        }
        let version = network.version;
        self.change(|record| record.network = network).await.map_err(ChangeError::Storage)?;
        let record = self.record();
        if self.network.is_none() && record.slot.is_some() {
            // It could not be taken over, and goes on enforcing what it did: that must not be called in force.
            return Err(ChangeError::Host {
                what: "enforce the sandbox's network policy",
                source: io::Error::other("its network is out of order; pause and resume it"),
            });
        }
        if let Some(attachment) = &self.network {
            let applied = attachment.apply(&record.network).await;
            applied.map_err(|error| ChangeError::Host {
                what: "enforce the sandbox's network policy",
                source: io::Error::other(error_chain::chain(&error)),
            })?;
            tracing::info!(target: "audit", sandbox = record.id, version, "network policy enforced");
        }
        Ok(record)
    }

    /// What the sandbox was kept from reaching since its machine started.
    pub(super) async fn denied(&self) -> Result<DeniedPage, ChangeError> {
        match &self.network {
            Some(attachment) => attachment.denied().await.map_err(|error| ChangeError::Host {
                what: "read what the sandbox was kept from reaching",
                source: io::Error::other(error_chain::chain(&error)),
            }),
            None => Ok(DeniedPage { total: 0, entries: Vec::new() }),
        }
    }
}
