//! How the network of a sandbox changes while its machine runs. What is written down is the policy that is wanted; a slot
//! tells which one it enforces.

use std::io;
use std::sync::Arc;

use sandpiper_network::{Attachment, Slot};
use sandpiper_protocol::agent::{self, DeniedPage};
use sandpiper_protocol::error_chain;

use crate::sandbox::errors::ChangeError;
use crate::sandbox::record::Record;
use crate::sandbox::supervisor::Supervisor;

impl Supervisor {
    /// Takes over the slot of a machine that ran on without an agent. It has enforced its policy meanwhile.
    pub(crate) async fn adopt_network(&self) -> Option<Attachment> {
        let record = self.record();
        let (host, slot) = (self.context.network()?, record.slot?);
        match host.adopt(slot, Slot::mac_of(&record.id), &record.network).await {
            Ok(attachment) => Some(attachment),
            Err(error) => {
                let error = error_chain::chain(&error);
                tracing::error!(sandbox = record.id.as_str(), slot, error, "a sandbox's network cannot be taken over");
                self.log.host(format!("its network is out of order; pause and resume it: {error}"));
                None
            }
        }
    }

    /// Has the sandbox reach what `network` says: from now on where its machine is `attached`, else from its next start on.
    /// An older policy than it has changes nothing.
    pub(crate) async fn set_network(
        &mut self,
        attached: Option<&Attachment>,
        network: agent::Network,
    ) -> Result<Arc<Record>, ChangeError> {
        if network.version < self.record().network.version {
            return Ok(self.record());
        }
        if let Some(host) = self.context.network() {
            host.check(&network.policy).map_err(|error| ChangeError::Invalid(error_chain::chain(&error)))?;
        }
        let version = network.version;
        self.change(|record| record.network = network).await.map_err(ChangeError::Storage)?;
        let record = self.record();
        if attached.is_none() && record.slot.is_some() {
            // It could not be taken over, and goes on enforcing what it did: that must not be called in force.
            return Err(ChangeError::Host {
                what: "enforce the sandbox's network policy",
                source: io::Error::other("its network is out of order; pause and resume it"),
            });
        }
        if let Some(attachment) = attached {
            let applied = attachment.apply(&record.network).await;
            applied.map_err(|error| ChangeError::Host {
                what: "enforce the sandbox's network policy",
                source: io::Error::other(error_chain::chain(&error)),
            })?;
            tracing::info!(target: "audit", sandbox = record.id.as_str(), version, "network policy enforced");
        }
        Ok(record)
    }

    /// What the sandbox was kept from reaching since its machine started.
    pub(crate) async fn denied(&self, attached: Option<&Attachment>) -> Result<DeniedPage, ChangeError> {
        match attached {
            Some(attachment) => attachment.denied().await.map_err(|error| ChangeError::Host {
                what: "read what the sandbox was kept from reaching",
                source: io::Error::other(error_chain::chain(&error)),
            }),
            None => Ok(DeniedPage { total: 0, entries: Vec::new() }),
        }
    }
}
