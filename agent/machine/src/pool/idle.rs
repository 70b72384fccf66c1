//! One idle monitor: it belongs to no sandbox yet.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_protocol::vmm::{Request, Shape};

use super::Config;
use crate::control::{self, Control, RequestError};
use crate::error::MachineError;
use crate::jail::Jail;
use crate::jail::cgroup::{Cgroups, Limits};
use crate::paths::MachinePaths;
use crate::process::{self, Identity, KnownMonitor, MonitorProcess, Spawn};

/// Prefix of a monitor's id.
pub(crate) const ID_PREFIX: &str = "mon";

/// How long a monitor may take to prepare itself: less than a second on a busy machine.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(20);
/// Memory that a monitor needs besides its guest's: this much and an eighth of the guest's (page tables, buffers, maps).
const OVERHEAD_BYTES: u64 = 64 << 20;
/// Threads of a monitor besides one for each vCPU.
const TASKS: u32 = 64;

/// A monitor that waits for its first request.
#[derive(Debug)]
pub struct IdleMonitor {
    known: KnownMonitor,
    shape: Shape,
    process: MonitorProcess,
    /// `None` when it did not take the connection; it has ended, most likely, and whoever asks it finds out.
    monitor: Option<Control>,
    paths: MachinePaths,
}

/// A monitor that was just started.
pub(super) struct Spawned {
    known: KnownMonitor,
    shape: Shape,
    pidfd: OwnedFd,
    paths: MachinePaths,
}

/// Starts a monitor in folders of its own. Leaves nothing behind on failure. Blocks.
pub(super) fn spawn(
    config: &Config,
    boot_id: &str,
    cgroups: &Cgroups,
    id: &str,
    uid: Option<u32>,
    shape: Shape,
) -> Result<Spawned, MachineError> {
    let own = config.folders(id);
    let result = spawn_in(&own, config, boot_id, cgroups, id, uid, shape);
    if result.is_err() {
        remove(&own);
        if let Err(error) = cgroups.remove(id) {
            tracing::warn!(monitor = id, %error, "cannot remove the cgroup of a monitor that was not started");
        }
    }
    let (identity, pidfd) = result?;
    Ok(Spawned { known: KnownMonitor { identity, id: id.to_owned(), uid }, shape, pidfd, paths: own })
}

fn spawn_in(
    own: &MachinePaths,
    config: &Config,
    boot_id: &str,
    cgroups: &Cgroups,
    id: &str,
    uid: Option<u32>,
    shape: Shape,
) -> Result<(Identity, OwnedFd), MachineError> {
    let failed = |what| move |source| MachineError::Host { what, source };
    for folder in [&own.state, &own.runtime] {
        fs::DirBuilder::new().mode(0o700).create(folder).map_err(failed("create a monitor's folder"))?;
    }
    let kvm = File::options().read(true).write(true).open("/dev/kvm").map_err(failed("open /dev/kvm"))?;
    let control = control::listen_at(&own.control_socket()).map_err(failed("create the control socket"))?;
    let exit_record = create(&own.exit_record()).map_err(failed("create the exit record"))?;
    let log = create(&own.monitor_log()).map_err(failed("create the monitor's log"))?;
    let cgroup = uid.map(|_| cgroups.create(id, &limits(shape))).transpose();
    let cgroup = cgroup.map_err(failed("create the monitor's cgroup"))?;
    let spawn = Spawn {
        vmm: &config.program,
        name: id,
        folder: &own.state,
        control: control.as_fd(),
        exit_record: exit_record.as_fd(),
        kvm: kvm.as_fd(),
        log,
        jail: uid.zip(cgroup.as_ref()).map(|(uid, cgroup)| Jail { uid, cgroup }),
    };
    process::spawn(spawn, boot_id).map_err(failed("start the monitor (`vmm` in the configuration)"))
}

fn limits(shape: Shape) -> Limits {
    let guest = u64::from(shape.memory_mib) << 20;
    Limits {
        cpus: u32::from(shape.vcpus),
        memory_bytes: guest + guest / 8 + OVERHEAD_BYTES,
        tasks: TASKS + u32::from(shape.vcpus),
    }
}

/// A new file that is only ever appended to, so that it can be cut while its writer has it open.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

fn remove(paths: &MachinePaths) {
    for folder in [&paths.runtime, &paths.state] {
        if let Err(error) = durable::remove_tree(folder) {
            tracing::warn!(path = %folder.display(), %error, "cannot remove an idle monitor's folder; the next start will");
        }
    }
}

impl IdleMonitor {
    /// Watches a new monitor and connects to it; it is killed if it cannot be watched.
    pub(super) fn watch(spawned: Spawned) -> io::Result<Self> {
        let Spawned { known, shape, pidfd, paths } = spawned;
        match pidfd.try_clone().and_then(MonitorProcess::watch) {
            Ok(process) => {
                let monitor = Control::connect(&paths.control_socket()).ok();
                Ok(Self { known, shape, process, monitor, paths })
            }
            Err(error) => {
                let killed = process::kill_blocking(pidfd.as_fd());
                tracing::error!(monitor = known.id, ?killed, %error, "a new monitor cannot be watched");
                remove(&paths);
                Err(error)
            }
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.known.id
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// What goes into the record of the sandbox that takes it.
    pub fn known(&self) -> KnownMonitor {
        self.known.clone()
    }

    /// Whether the process is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Has the monitor do what depends on its shape only.
    pub(super) async fn prepare(&mut self) -> Result<(), RequestError> {
        let monitor = self.monitor.as_mut().ok_or(RequestError::Closed)?;
        monitor.request(Request::Prepare(self.shape), &[], PREPARE_TIMEOUT).await.map(drop)
    }

    /// Moves the monitor's files into the folders of the machine that it becomes, over those of an earlier monitor. A Unix
    /// socket is found under its new name as well. Blocks.
    ///
    /// # Errors
    /// Of the first file that cannot be moved.
    pub fn move_into(&self, machine: &MachinePaths) -> io::Result<()> {
        fs::rename(self.paths.control_socket(), machine.control_socket())?;
        fs::rename(self.paths.exit_record(), machine.exit_record())?;
        fs::rename(self.paths.monitor_log(), machine.monitor_log())?;
        fs::remove_dir(&self.paths.runtime)?;
        fs::remove_dir(&self.paths.state)
    }

    /// The parts that a machine is made of.
    pub fn into_parts(self) -> (KnownMonitor, MonitorProcess, Option<Control>) {
        (self.known, self.process, self.monitor)
    }

    /// Ends the process and removes its folders.
    pub(super) async fn end(self) -> io::Result<()> {
        self.process.kill().await?;
        let paths = self.paths;
        tokio::task::spawn_blocking(move || remove(&paths)).await.map_err(io::Error::other)
    }
}
