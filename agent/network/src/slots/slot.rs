//! One slot, as a sandbox has it.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandpiper_protocol::guest::GuestNetwork;
use sha2::{Digest, Sha256};

use crate::firewall::{Firewall, FirewallError};
use crate::links::Mac;
use crate::meter::Meter;
use crate::names::Sockets;
use crate::neighbours::Neighbours;
use crate::netns::Netns;
use crate::plan::{GATEWAY, GATEWAY6, GUEST, GUEST6, PREFIX, PREFIX6};
use crate::tap;
use crate::traffic::TrafficReader;

/// A slot that is taken. Without [`Slots::destroy`](super::Slots::destroy) it stays as it is, for the next agent to adopt
/// or to take away.
#[derive(Debug)]
pub struct Slot {
    pub(super) number: u32,
    pub(super) name: String,
    /// The file in which its proxy counts.
    pub(super) meter: PathBuf,
    pub(super) netns: Arc<Netns>,
    pub(super) traffic: Arc<TrafficReader>,
    pub(super) mtu: u16,
    /// Open since it was made, until a monitor gets it. Its link is up only while it is open, and what the slot sends into a
    /// link that has just come up is lost.
    pub(super) tap: Mutex<Option<OwnedFd>>,
    /// Open since it was made, until a machine has it.
    pub(super) tools: Mutex<Option<Tools>>,
}

/// What a slot is used with, open in it.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) firewall: Firewall,
    pub(crate) neighbours: Neighbours,
    pub(crate) sockets: Sockets,
    pub(crate) meter: Arc<Meter>,
    /// Nothing was enforced in the slot yet.
    pub(crate) is_new: bool,
}

impl Tools {
    /// Of a slot that has its links and its rules. Blocks; to be called within the runtime that will serve the sockets.
    pub(super) fn open(firewall: Firewall, netns: &Netns, meter: &Path, is_new: bool) -> Result<Self, ToolsError> {
        let neighbours = Neighbours::open(netns).map_err(ToolsError::Neighbours)?;
        let gateways = [IpAddr::from(GATEWAY), IpAddr::from(GATEWAY6)];
        let sockets = Sockets::bind(netns, &gateways).map_err(ToolsError::Listen)?;
        let meter = Arc::new(Meter::open(meter).map_err(ToolsError::Meter)?);
        Ok(Self { firewall, neighbours, sockets, meter, is_new })
    }
}

/// Why a slot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    #[error("Cannot open the slot's table of neighbours")]
    Neighbours(#[source] io::Error),
    #[error("Cannot listen in the slot")]
    Listen(#[source] io::Error),
    #[error("Cannot open the file in which the slot's proxy counts")]
    Meter(#[source] io::Error),
}

impl Slot {
    /// By which it is adopted.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Of its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// What reads how much went through it.
    pub fn traffic(&self) -> &Arc<TrafficReader> {
        &self.traffic
    }

    /// The tap, for a monitor: it does not block. `EBUSY` while another has it. Blocks.
    pub fn open_tap(&self) -> io::Result<OwnedFd> {
        let kept = self.tap.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.map_or_else(|| self.netns.run(tap::open), Ok)
    }

    /// What it is used with. Blocks; to be called within the runtime that will serve the sockets.
    pub(crate) fn tools(&self) -> Result<Tools, ToolsError> {
        let kept = self.tools.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.map_or_else(|| Tools::open(Firewall::open(&self.netns)?, &self.netns, &self.meter, false), Ok)
    }

    /// Tells the slot which Ethernet address its guest has. Blocks.
    ///
    /// # Errors
    /// The kernel refused, or there is no tap.
    pub fn set_guest(&self, mac: Mac) -> io::Result<()> {
        Neighbours::open(&self.netns)?.set_guest(mac)
    }

    /// What the guest is told about its network.
    pub fn guest_network(&self, mac: Mac) -> GuestNetwork {
        GuestNetwork {
            mac,
            address: GUEST,
            prefix_length: PREFIX,
            gateway: GATEWAY,
            address6: GUEST6,
            prefix_length6: PREFIX6,
            gateway6: GATEWAY6,
            mtu: self.mtu,
        }
    }

    /// The Ethernet address of a sandbox's guest: always the same for it, and most likely no other's.
    pub fn mac_of(sandbox_id: &str) -> Mac {
        let hash = Sha256::digest(sandbox_id);
        // Of one device (bit 0 clear), and not given by a maker (bit 1 set).
        [hash[0] & 0xfc | 0x02, hash[1], hash[2], hash[3], hash[4], hash[5]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_has_one_mac_that_is_a_devices_own() {
        let mac = Slot::mac_of("sbx1");
        assert_eq!(mac, Slot::mac_of("sbx1"));
        assert_ne!(mac, Slot::mac_of("sbx2"));
        for id in 0..1000 {
            assert_eq!(Slot::mac_of(&format!("sbx{id}"))[0] & 0b11, 0b10);
        }
    }
}
