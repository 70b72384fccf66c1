//! How a machine gets its network.
//!
//! The order is what keeps a guest from ever having more than it may: the slot, the policy in it, and only then a machine
//! that is given the slot's tap.

use std::io;
use std::os::fd::OwnedFd;

use sandpiper_network::{AttachError, Attachment, Network, Slot};
use sandpiper_protocol::guest::GuestNetwork;
use sandpiper_protocol::vmm::{NetConfig, NetLimits};
use sandpiper_protocol::{agent, error_chain};

use super::LaunchError;

/// What a monitor is given of a network.
#[derive(Debug)]
pub(super) struct Tap {
    pub(super) config: NetConfig,
    pub(super) fd: OwnedFd,
}

/// A machine's network and the tap to give it, for one that is called `name`: a slot that enforces `policy`, and a device
/// that is no faster than `limits`. Neither on a host without networks, or
/// without a policy.
pub(super) async fn attach(
    host: Option<&Network>,
    name: &str,
    policy: Option<&agent::Network>,
    limits: NetLimits,
) -> Result<(Option<Attachment>, Option<Tap>), LaunchError> {
    let (Some(host), Some(policy)) = (host, policy) else { return Ok((None, None)) };
    let mac = Slot::mac_of(name);
    let failed = |error: AttachError| LaunchError::Host {
        what: "give the sandbox a network",
        source: io::Error::other(error_chain::chain(&error)),
    };
    let attachment = host.attach(mac, policy).await.map_err(failed)?;
    match attachment.tap().await {
        Ok(fd) => Ok((Some(attachment), Some(Tap { config: NetConfig { mac, limits }, fd }))),
        Err(source) => {
            attachment.detach().await;
            Err(LaunchError::Host { what: "open the sandbox's tap", source })
        }
    }
}

/// Takes a slot away, if there is one.
pub(super) async fn detach(attachment: Option<Attachment>) {
    if let Some(attachment) = attachment {
        attachment.detach().await;
    }
}

/// What the guest is told of it.
pub(crate) fn guest_network(attachment: Option<&Attachment>) -> Option<GuestNetwork> {
    attachment.map(Attachment::guest_network)
}
