//! The network of one machine, and of the host: what the agent deals with.
//!
//! A [`Network`] is the host's slots and what all of them resolve and dial with. An [`Attachment`] is one slot as one machine
//! has it: the policy is in force in it before anybody is given its tap, and stays in force when the agent ends, since it
//! is the kernel's. What ends with the agent are names: an agent that takes the slot over starts them anew.
//!
//! A slot knows which policy it enforces by the policy's version, which is the firewall's *generation*: connections carry
//! the generation that allowed them, and those of another are asked about again.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpiper_durable::{Interrupted, blocking};
use sandpiper_policy::{
    Destination, DestinationError, Host, Platform, Policy, PolicyError, Profiles, ProfilesError, Protocol,
};
use sandpiper_protocol::agent::{
    self, Denied, DeniedPage, ExplainNetwork, NetworkDecision, NetworkExplanation, NetworkPolicy,
};
use sandpiper_protocol::guest::GuestNetwork;
use sandpiper_protocol::interval::Counters;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::firewall::{DeniedPacket, Firewall, FirewallError};
use crate::links::Mac;
use crate::meter::Meter;
use crate::names::{self, ChangeError, Names};
use crate::neighbours::Neighbours;
use crate::netns::Netns;
use crate::pin::Pinned;
use crate::plan::Plan;
use crate::slots::{Slot, SlotError, Slots, Tools, ToolsError};
use crate::traffic::{Traffic, TrafficReader};
use crate::upstream::{Upstream, UpstreamError};

/// Most destinations that [`Attachment::denied`] tells of.
const MAX_DENIED: usize = 256;

/// Why sandboxes cannot be given a network.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Slots(#[from] SlotError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("Cannot read the egress profiles")]
    Profiles(#[from] ProfilesError),
    #[error("Another agent on this host has `network.name` = {0:?}; give each a name and transit ranges of its own")]
    Claimed(String),
    #[error("Cannot claim `network.name`")]
    Claim(#[source] io::Error),
}

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("Cannot read the egress profiles")]
    Profiles(#[from] ProfilesError),
    #[error(transparent)]
    Destination(#[from] DestinationError),
}

/// Why a machine has no network, or not the one that it should have.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error(transparent)]
    Policy(#[from] CheckError),
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    #[error(transparent)]
    Tools(#[from] ToolsError),
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Change(#[from] ChangeError<FirewallError>),
}

impl From<Interrupted> for AttachError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Host { what: "work on a network slot", source: interrupted.into() }
    }
}

/// The networks of this host. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Network {
    config: Arc<Config>,
    slots: Slots,
    upstream: Upstream,
    /// For the connections of all sandboxes' proxies.
    memory: Arc<Semaphore>,
    /// Of the slots that machines have, by their numbers.
    readers: Arc<Mutex<HashMap<u32, Arc<TrafficReader>>>>,
    /// Held as long as this process looks after the slots.
    _claim: Arc<UnixListener>,
}

impl Network {
    /// Sets up the host, and removes the slots that an earlier agent left but those `in_use`.
    pub async fn start(config: Config, in_use: &[u32]) -> Result<Self, StartError> {
        let config = Arc::new(config);
        let claim = Arc::new(claim(&config.name)?);
        read_profiles(&config)?;
        let upstream = Upstream::new(&config.resolvers)?;
        let slots = Slots::start(Arc::clone(&config), in_use).await?;
        let memory = names::memory(config.proxy_memory_mb);
        Ok(Self { config, slots, upstream, memory, readers: Arc::default(), _claim: claim })
    }

    /// Whether a policy can be enforced here. Blocks for a moment, as [`Self::profiles`] does.
    pub fn check(&self, policy: &NetworkPolicy) -> Result<(), CheckError> {
        self.compile(policy).map(drop)
    }

    /// What a policy would mean here for each of the destinations. Blocks for a moment, as [`Self::profiles`] does.
    pub fn explain(&self, request: &ExplainNetwork) -> Result<NetworkExplanation, CheckError> {
        let policy = self.compile(&request.policy)?;
        let decide = |text: &String| {
            let decision = policy.decide(&text.parse::<Destination>()?);
            Ok(NetworkDecision { is_allowed: decision.is_allowed(), rule: decision.rule.to_string() })
        };
        Ok(NetworkExplanation {
            decisions: request.destinations.iter().map(decide).collect::<Result<_, CheckError>>()?,
        })
    }

    /// Names of the operator's profiles, as they are now.
    pub fn profiles(&self) -> Result<Vec<String>, ProfilesError> {
        Ok(read_profiles(&self.config)?.names().map(str::to_owned).collect())
    }

    /// A slot that enforces `network`, for a machine with this Ethernet address.
    pub async fn attach(&self, mac: Mac, network: &agent::Network) -> Result<Attachment, AttachError> {
        let slot = self.slots.take().await?;
        self.occupy(slot, mac, network).await
    }

    /// The slot of a machine that runs, which an earlier agent attached.
    pub async fn adopt(&self, slot: u32, mac: Mac, network: &agent::Network) -> Result<Attachment, AttachError> {
        let slot = self.slots.adopt(slot).await?;
        self.occupy(slot, mac, network).await
    }

    /// How much went through the slot of this number, which a machine has. Blocks.
    ///
    /// # Errors
    /// There is no such slot, or none any more.
    pub fn traffic(&self, slot: u32) -> io::Result<Traffic> {
        let reader = self.readers().get(&slot).cloned();
        reader.ok_or(io::ErrorKind::NotFound)?.read()
    }

    /// Takes away what no machine has. Those that run go on under their policies.
    pub async fn close(&self) {
        self.slots.close().await;
    }

    async fn occupy(&self, slot: Slot, mac: Mac, network: &agent::Network) -> Result<Attachment, AttachError> {
        let slot = Arc::new(slot);
        self.readers().insert(slot.number(), Arc::clone(slot.traffic()));
        match self.enforce(&slot, mac, network).await {
            Ok((enforcement, names)) => {
                let base = Counters::default();
                Ok(Attachment { network: self.clone(), slot, mac, enforcement, names, base })
            }
            Err(error) => {
                self.destroy(slot).await;
                Err(error)
            }
        }
    }

    async fn enforce(
        &self,
        slot: &Arc<Slot>,
        mac: Mac,
        network: &agent::Network,
    ) -> Result<(Enforcement, Names), AttachError> {
        let this = self.clone();
        let (slot, network) = (Arc::clone(slot), network.clone());
        let runtime = tokio::runtime::Handle::current();
        let work = move || {
            // For the sockets.
            let _within = runtime.enter();
            let Tools { firewall, neighbours, sockets, meter, is_new } = slot.tools()?;
            let enforcement = Enforcement { firewall, neighbours: Arc::new(neighbours), meter };
            let policy = Arc::new(this.compile(&network.policy)?);
            enforcement.set_guest(mac)?;
            let (firewall, generation) = (&enforcement.firewall, generation(network.version));
            // A slot that is adopted has enforced this, or an older policy.
            if is_new || firewall.generation()? != Some(generation) {
                firewall.apply(&policy, generation, &[])?;
            }
            let pins = Arc::new(firewall.clone());
            let limits = names::Limits { memory: Arc::clone(&this.memory), ..names::Limits::default() };
            let names = Names::start(sockets, policy, pins, &this.upstream, Arc::clone(&enforcement.meter), limits);
            Ok((enforcement, names))
        };
        blocking(work).await
    }

    fn compile(&self, policy: &NetworkPolicy) -> Result<Policy, CheckError> {
        let platform = Platform { allow: self.config.allow_ranges.clone(), deny: self.config.deny_ranges.clone() };
        Ok(Policy::compile(policy, &read_profiles(&self.config)?, &platform)?)
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<u32, Arc<TrafficReader>>> {
        // No code panics between taking and releasing the lock.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn destroy(&self, slot: Arc<Slot>) {
        self.readers().remove(&slot.number());
        // Others had it for a moment only.
        if let Some(slot) = Arc::into_inner(slot) {
            self.slots.destroy(slot).await;
        }
    }
}

/// A machine's network. Dropped, it goes on as it is, without names; see [`Self::detach`].
pub struct Attachment {
    network: Network,
    slot: Arc<Slot>,
    mac: Mac,
    enforcement: Enforcement,
    names: Names,
    /// What the counters said when the machine got the slot.
    base: Counters,
}

/// What the kernel enforces in a slot, and what it counts. Clones are the same.
#[derive(Debug, Clone)]
struct Enforcement {
    firewall: Firewall,
    neighbours: Arc<Neighbours>,
    meter: Arc<Meter>,
}

impl Enforcement {
    /// Only a guest with this Ethernet address is let through, and is found, from now on. Waits for the kernel only.
    fn set_guest(&self, mac: Mac) -> Result<(), AttachError> {
        self.firewall.set_guest(mac)?;
        let failed = |source| AttachError::Host { what: "set the guest's neighbours", source };
        self.neighbours.set_guest(mac).map_err(failed)
    }

    /// See [`Attachment::counters`]. Waits for the kernel only.
    fn counters(&self) -> Result<Option<Counters>, AttachError> {
        let forwarded = self.firewall.forwarded()?;
        Ok(forwarded.map(|forwarded| Counters { forwarded, proxied: self.meter.read() }))
    }
}

impl Attachment {
    /// By which it is adopted.
    pub fn slot(&self) -> u32 {
        self.slot.number()
    }

    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// What the guest is told.
    pub fn guest_network(&self) -> GuestNetwork {
        self.slot.guest_network(self.mac)
    }

    /// The tap, for one monitor.
    pub async fn tap(&self) -> io::Result<OwnedFd> {
        let slot = Arc::clone(&self.slot);
        blocking(move || slot.open_tap()).await
    }

    /// Enforces another policy: all of it, at once, also for connections that are open. If that fails, the former holds.
    pub async fn apply(&self, network: &agent::Network) -> Result<(), AttachError> {
        let (host, policy) = (self.network.clone(), network.policy.clone());
        let policy = blocking(move || host.compile(&policy).map_err(AttachError::from)).await?;
        self.enforce(policy, network.version).await
    }

    async fn enforce(&self, policy: Policy, version: u64) -> Result<(), AttachError> {
        let (firewall, generation) = (self.enforcement.firewall.clone(), generation(version));
        let apply = move |policy: &Policy, pins: &[Pinned]| firewall.apply(policy, generation, pins);
        Ok(self.names.change(Arc::new(policy), apply).await?)
    }

    /// What the counters of the slot say, of all that went beyond the host by it and came from there since it was made; `None` of a
    /// slot that an agent made which did not count.
    ///
    /// # Errors
    /// The kernel did not tell.
    pub async fn counters(&self) -> Result<Option<Counters>, AttachError> {
        let enforcement = self.enforcement.clone();
        blocking(move || enforcement.counters()).await
    }

    /// What they said when a machine got the slot that was not adopted: all that was counted before is not that machine's.
    pub fn base(&self) -> Counters {
        self.base
    }

    /// Makes it that of a machine with another Ethernet address, under another policy. If that fails, nobody is to have it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn hand_over(&mut self, mac: Mac, network: &agent::Network) -> Result<(), AttachError> {
        let (host, policy, enforcement) = (self.network.clone(), network.policy.clone(), self.enforcement.clone());
        let cut_off = move || {
            // First: nothing passes any more until the guest has the new address, and the policy is in force before that.
            enforcement.set_guest(mac)?;
            let base = enforcement.counters()?.unwrap_or_default();
            Ok::<_, AttachError>((base, host.compile(&policy)?))
        };
        let (base, policy) = blocking(cut_off).await?;
        self.enforce(policy, network.version).await?;
        (self.mac, self.base) = (mac, base);
        Ok(())
    }

    /// What was refused since the machine has this slot.
    pub async fn denied(&self) -> Result<DeniedPage, AttachError> {
        let firewall = self.enforcement.firewall.clone();
        let (packets, totals) =
            blocking(move || Ok::<_, AttachError>((firewall.denied()?, firewall.totals()?))).await?;
        let policy = self.names.policy();
        let (mut entries, by_name) = self.names.denied();
        entries.extend(packets.iter().map(|packet| describe(packet, &policy)));
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.time));
        entries.truncate(MAX_DENIED);
        Ok(DeniedPage { total: totals.policy + totals.spoofed + totals.limited + by_name, entries })
    }

    /// Takes the slot away. The machine should be gone: it is cut off.
    pub async fn detach(self) {
        self.names.close().await;
        drop(self.enforcement);
        self.network.destroy(self.slot).await;
    }
}

/// What the counters say of the slot of this number, which a process has left, if it is that of a machine with this Ethernet address;
/// `None` of another machine's, which has the number by now, and of one that was made by an agent which did not count. Blocks.
///
/// # Errors
/// There is no such slot.
pub fn counters(config: &Config, slot: u32, mac: Mac) -> Result<Option<Counters>, AttachError> {
    let failed = |source| AttachError::Host { what: "read the counters of a network slot", source };
    let plan = Plan::of(config, slot).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let netns = Netns::open(&plan.name).map_err(failed)?;
    let firewall = Firewall::open(&netns)?;
    if firewall.guest()? != Some(mac) {
        return Ok(None);
    }
    let Some(forwarded) = firewall.forwarded()? else { return Ok(None) };
    Ok(Some(Counters { forwarded, proxied: Meter::read_file(&plan.meter).map_err(failed)? }))
}

/// Takes the name for this process: agents of one name would remove each other's slots. An abstract socket belongs to a
/// network namespace, as slots do, and is free again when its process is gone, however that went.
fn claim(name: &str) -> Result<UnixListener, StartError> {
    let address = SocketAddr::from_abstract_name(format!("sandpiper/network/{name}")).map_err(StartError::Claim)?;
    UnixListener::bind_addr(&address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::Claimed(name.to_owned()),
        _ => StartError::Claim(error),
    })
}

/// The firewall compares 31 bits.
fn generation(version: u64) -> u32 {
    u32::try_from(version & 0x7fff_ffff).unwrap_or_default()
}

/// A destination that the firewall denied, with the rule that denies it now.
fn describe(packet: &DeniedPacket, policy: &Policy) -> Denied {
    let (protocol, name) = match packet.protocol {
        6 => (Some(Protocol::Tcp), "tcp".to_owned()),
        17 => (Some(Protocol::Udp), "udp".to_owned()),
        1 | 58 => (Some(Protocol::Icmp), "icmp".to_owned()),
        other => (None, other.to_string()),
    };
    let rule = match protocol {
        Some(protocol) => {
            let destination = Destination { protocol, host: Host::Address(packet.address), port: packet.port };
            policy.decide(&destination).rule.to_string()
        }
        None => "only TCP, UDP and echo requests leave a sandbox".to_owned(),
    };
    Denied {
        time: packet.time,
        protocol: name,
        host: packet.address.to_string(),
        port: packet.port,
        rule,
        count: packet.count,
    }
}

fn read_profiles(config: &Config) -> Result<Profiles, ProfilesError> {
    config.profiles.as_deref().map_or_else(|| Ok(Profiles::default()), Profiles::read)
}
