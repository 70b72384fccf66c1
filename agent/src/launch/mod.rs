//! One way to launch a machine, whoever it is for: a new sandbox, one that goes on, a fork, or a warm snapshot.
//!
//! ```text
//!   files ────────┐
//!   network slot ─┼─ gather ─▶ Gathered ─ settle ─▶ Running + Kit ─ start ─▶ the guest boots, or goes on
//!   idle monitor ─┘                     (written down)
//! ```
//!
//! * [`Launcher::gather`] makes and takes all three at the same time. If one cannot be had, the others are given back.
//! * [`Gathered::settle`] moves the monitor into the machine's folders and has the caller write down what it needs to find
//!   the machine again.
//! * [`Kit::start`] has the monitor start the machine.
//!
//! Files are never removed here: whoever launches knows which of them were there before.

mod error;
mod files;
mod network;
mod running;
mod volumes;

use std::io;
use std::sync::{Arc, OnceLock};

use sandpiper_images::layers::{self, Files};
use sandpiper_images::templates::GuestDefaults;
use sandpiper_machine::control::{Control, RequestError};
use sandpiper_machine::link::{Envs, Guest};
use sandpiper_machine::pool::{IdleMonitor, MonitorPool};
use sandpiper_machine::process::{KnownMonitor, MonitorProcess};
use sandpiper_machine::{DiskMetrics, Machine, MachinePaths};
use sandpiper_network::{Attachment, Network};
use sandpiper_protocol::agent;
use sandpiper_protocol::vmm::{DiskLimits, NetLimits, Reply, Shape, Timings};
use sandpiper_trace::step;
use tracing::Instrument;

pub(crate) use self::error::LaunchError;
use self::files::Parts;
pub(crate) use self::files::Source;
pub(crate) use self::network::guest_network;
pub(crate) use self::running::Running;
pub(crate) use self::volumes::Attachments;
use crate::capacity::Reservation;
use crate::config::Config;

/// What launches take of this host.
pub(crate) struct Launcher {
    config: Arc<Config>,
    /// Monitors that wait for a machine.
    pub(crate) pool: MonitorPool,
    /// Set once it is known which slots are in use; never on a host whose sandboxes have no network.
    network: OnceLock<Network>,
    /// Where machines count how they fare with the host's disk.
    disk: DiskMetrics,
}

/// What machine is launched.
pub(crate) struct Order {
    pub(crate) source: Source,
    /// Where its files and sockets are.
    pub(crate) paths: MachinePaths,
    pub(crate) shape: Shape,
    pub(crate) disk_gib: u32,
    /// What the guest is told: its name, its environment variables, and in which life of the sandbox it is.
    pub(crate) name: String,
    pub(crate) envs: Envs,
    pub(crate) generation: u64,
    /// What its template's version says of its programs.
    pub(crate) defaults: GuestDefaults,
    /// What it may reach, and how fast. Without a policy it has no network device.
    pub(crate) network: Option<agent::Network>,
    pub(crate) net_limits: NetLimits,
    pub(crate) disk_limits: DiskLimits,
    /// Claimed, and attached once the monitor runs the machine.
    pub(crate) volumes: Attachments,
    /// The guest is of the agent's own template, and serves the volume that it has.
    pub(crate) serves_volume: bool,
    /// The guest tells what its processes write.
    pub(crate) capture_output: bool,
}

/// All that a machine is made of. Not to be dropped: monitor and slot are given back by [`Self::settle`] when that fails.
pub(crate) struct Gathered {
    order: Order,
    files: Files,
    parts: Parts,
    monitor: IdleMonitor,
    network: Option<Attachment>,
}

/// What a machine is started with.
pub(crate) struct Kit {
    parts: Parts,
    shape: Shape,
    disk_limits: DiskLimits,
}

impl Launcher {
    pub(crate) fn new(config: Arc<Config>, pool: MonitorPool, disk: DiskMetrics) -> Self {
        Self { config, pool, network: OnceLock::new(), disk }
    }

    /// Gives machines a network from now on. To be called once, before the first of them.
    pub(crate) fn open_network(&self, network: Network) {
        // The first one stays.
        let _ = self.network.set(network);
    }

    /// The network of this host; `None` if it is turned off.
    pub(crate) fn network(&self) -> Option<&Network> {
        self.network.get()
    }

    /// How fast the network of a machine may be on this host.
    pub(crate) fn net_limits(&self) -> NetLimits {
        let limits = self.config.network.limits;
        NetLimits { bytes_per_second: limits.bandwidth, packets_per_second: Some(limits.packets.into()) }
    }

    /// How much the disk of a machine may do on this host.
    pub(crate) fn disk_limits(&self) -> DiskLimits {
        self.config.disk.limits()
    }

    /// The machine of a monitor that runs already: one that was just started, with its connection, or one of an earlier
    /// agent.
    pub(crate) fn machine(
        &self,
        guest: Guest,
        known: KnownMonitor,
        process: MonitorProcess,
        connection: Option<Control>,
        paths: &MachinePaths,
    ) -> Machine {
        Machine::new(guest, known, process, connection, paths.control_socket(), self.disk.clone())
    }

    /// Makes the files of a machine and takes a network slot and a monitor for it.
    ///
    /// # Errors
    /// One of them cannot be had. Only files are left then.
    pub(crate) async fn gather(&self, order: Order) -> Result<Gathered, LaunchError> {
        let prepare = {
            let (config, paths, source) = (Arc::clone(&self.config), order.paths.clone(), order.source.clone());
            let disk_gib = order.disk_gib;
            tokio::task::spawn_blocking(move || files::prepare(&config, &paths, &source, disk_gib))
                .instrument(step("files"))
        };
        let policy = order.network.as_ref();
        let attach = network::attach(self.network(), &order.name, policy, order.net_limits).instrument(step("network"));
        let monitor = self.pool.take(order.shape).instrument(step("idle monitor"));
        let (prepared, monitor, attached) = tokio::join!(prepare, monitor, attach);
        let failed = |error| LaunchError::Host { what: "prepare the machine's files", source: io::Error::other(error) };
        match (prepared.map_err(failed).flatten(), monitor, attached) {
            (Ok((files, mut parts)), Ok(monitor), Ok((network, tap))) => {
                parts.connect(tap);
                Ok(Gathered { order, files, parts, monitor, network })
            }
            (prepared, monitor, attached) => {
                let (monitor, no_monitor) = split(monitor);
                if let Some(monitor) = monitor {
                    self.pool.end(monitor).await;
                }
                let (attached, no_network) = split(attached);
                network::detach(attached.and_then(|(attachment, _)| attachment)).await;
                // At least one of them is there.
                let error = prepared.err().or(no_network).or(no_monitor.map(LaunchError::from));
                Err(error.unwrap_or(LaunchError::ShuttingDown))
            }
        }
    }
}

impl Gathered {
    /// The slot of its network, if it has one.
    pub(crate) fn slot(&self) -> Option<u32> {
        self.network.as_ref().map(Attachment::slot)
    }

    /// The files of the machine, as they are in its folder.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// What the monitor is known by.
    pub(crate) fn monitor(&self) -> KnownMonitor {
        self.monitor.known()
    }

    /// Makes the monitor that of the machine, which holds `reservation` from now on: its files move into the machine's
    /// folders, and `write` writes it down.
    ///
    /// # Errors
    /// Of the file system. Monitor and slot are given back then.
    pub(crate) async fn settle<T: Send + 'static>(
        self,
        launcher: &Launcher,
        reservation: Reservation,
        write: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<(Running, Kit, T)> {
        let Self { order, files: _, parts, monitor, network } = self;
        let root_bytes = (!order.source.is_leaving()).then(|| layers::disk_size(order.disk_gib));
        let Order { paths, shape, name, envs, generation, defaults, disk_limits, volumes, .. } = order;
        let (serves_volume, capture_output) = (order.serves_volume, order.capture_output);
        let folders = paths.clone();
        let settled = tokio::task::spawn_blocking(move || {
            let written = monitor.move_into(&folders).and_then(|()| write());
            (monitor, written)
        });
        let error = match settled.await {
            Ok((monitor, Ok(written))) => {
                let (network_of, mounts) = (guest_network(network.as_ref()), volumes.mounts());
                let GuestDefaults { settings, start } = defaults;
                let guest = Guest {
                    id: name,
                    envs,
                    generation,
                    root_bytes,
                    network: network_of,
                    mounts,
                    serves_volume,
                    settings,
                    start,
                    capture_output,
                };
                let (known, process, connection) = monitor.into_parts();
                let machine = launcher.machine(guest, known, process, connection, &paths);
                let running = Running { machine, network, reservation, console: None, volumes };
                return Ok((running, Kit { parts, shape, disk_limits }, written));
            }
            Ok((monitor, Err(error))) => {
                launcher.pool.end(monitor).await;
                error
            }
            Err(error) => io::Error::other(error),
        };
        network::detach(network).await;
        Err(error)
    }
}

impl Kit {
    /// Has the monitor of a machine that is restored tell which pages it touches, for a working set.
    pub(crate) fn tell_touched(&mut self) {
        self.parts.tell_touched();
    }

    /// Has the monitor start the machine; says when it reached which step.
    ///
    /// # Errors
    /// The monitor refused, or did not answer.
    pub(crate) async fn start(self, machine: &mut Machine, config: &Config) -> Result<Timings, RequestError> {
        let (request, fds) = self.parts.request(self.shape, config, self.disk_limits);
        match machine.request(request, &fds, config.boot_timeout()).await? {
            Reply::Booted(timings) | Reply::Restored(timings) => Ok(timings),
            _ => Ok(Timings::default()),
        }
    }
}

fn split<T, E>(result: Result<T, E>) -> (Option<T>, Option<E>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(error)),
    }
}
