//! Starting a sandbox: from a record to a running monitor, up to the request that boots it.
//!
//! The order is what makes it safe to be killed anywhere: the record first, everything else in the two folders that the
//! record's id names, then the monitor, marked with its folder, then its identity into the record.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;

use sandpiper_protocol::agent::SandboxError;
use sandpiper_protocol::vmm::{DiskConfig, MachineConfig, Request};

use super::process::{self, Spawn};
use super::record::{self, Record};
use super::{Context, monitor};
use crate::host;
use crate::layers::{self, Disk, LayerError};
use crate::templates::Template;

/// Why a sandbox did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The host's fault.
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Disk(#[from] LayerError),
    /// The guest did not come up, or the monitor refused it.
    #[error("{} ({})", .0.message, .0.code)]
    Guest(SandboxError),
    #[error("The sandbox was deleted while it started")]
    Deleted,
    #[error("The agent is ending; try again")]
    ShuttingDown,
}

/// A monitor that waits to be told what to boot, and the files for it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) pidfd: OwnedFd,
    /// `CLOCK_MONOTONIC`, microseconds, just before the process was started.
    pub(super) spawned_at_us: u64,
    kernel: File,
    disk: Disk,
    vsock: OwnedFd,
    console: Option<File>,
}

/// Writes the record, makes the sandbox's files and starts its monitor, whose identity is in the record afterwards.
/// Cleans nothing up on failure, except that no monitor runs then. Blocks.
pub(super) fn prepare(context: &Context, record: &mut Record, template: &Template) -> Result<Prepared, StartError> {
    let paths = context.paths.sandbox(&record.id);
    let failed = |what| move |source| StartError::Host { what, source };

    fs::create_dir(&paths.state).map_err(failed("create the sandbox's folder"))?;
    save(context, record)?;
    fs::create_dir(&paths.runtime).map_err(failed("create the sandbox's runtime folder"))?;

    let disk = layers::create_root(&template.image, &paths.root_layer(), record.disk_gib)?;
    let kernel =
        File::open(&context.config.kernel).map_err(failed("open the guest kernel (`kernel` in the configuration)"))?;
    let kvm = File::options().read(true).write(true).open("/dev/kvm").map_err(failed("open /dev/kvm"))?;
    let control = monitor::listen_at(&paths.control_socket()).map_err(failed("create the control socket"))?;
    let vsock = UnixListener::bind(paths.vsock_socket()).map_err(failed("create the vsock socket"))?;
    let exit_record = create(&paths.exit_record()).map_err(failed("create the exit record"))?;
    let log = create(&paths.monitor_log()).map_err(failed("create the monitor's log"))?;
    let console = context.config.console.then(|| create(&paths.console_log())).transpose();
    let console = console.map_err(failed("create the console's log"))?;

    let spawned_at_us = host::monotonic_us();
    let spawn = Spawn {
        vmm: &context.config.vmm,
        name: &record.id,
        folder: &paths.state,
        control: control.as_fd(),
        exit_record: exit_record.as_fd(),
        kvm: kvm.as_fd(),
        log,
    };
    let (identity, pidfd) =
        process::spawn(spawn, &context.boot_id).map_err(failed("start the monitor (`vmm` in the configuration)"))?;
    record.process = Some(identity);
    if let Err(error) = save(context, record) {
        if let Err(error) = process::kill_blocking(pidfd.as_fd()) {
            tracing::error!(sandbox = record.id, %error, "a monitor without a record could not be killed");
        }
        return Err(error);
    }
    Ok(Prepared { pidfd, spawned_at_us, kernel, disk, vsock: vsock.into(), console })
}

fn save(context: &Context, record: &Record) -> Result<(), StartError> {
    let path = context.paths.sandbox(&record.id).record();
    record::save(&path, record).map_err(|source| StartError::Host { what: "write the sandbox's record", source })
}

/// A new file that is only ever appended to, so that it can be cut while its writer has it open.
fn create(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

impl Prepared {
    /// The request that boots the machine, and its descriptors in the order of the protocol.
    pub(super) fn boot_request(&self, record: &Record, kernel_args: &str) -> (Request, Vec<BorrowedFd<'_>>) {
        let config = MachineConfig {
            vcpus: u8::try_from(record.cpu).unwrap_or(u8::MAX),
            memory_mib: record.memory_mb,
            kernel_args: kernel_args.to_owned(),
            disks: vec![DiskConfig {
                serial: layers::ROOT_SERIAL.to_owned(),
                size: self.disk.size,
                layers: u32::try_from(self.disk.layers.len()).unwrap_or(u32::MAX),
                read_only: false,
            }],
            console: self.console.is_some(),
        };
        let mut fds = vec![self.kernel.as_fd()];
        fds.extend(self.disk.layers.iter().map(AsFd::as_fd));
        fds.push(self.vsock.as_fd());
        fds.extend(self.console.iter().map(AsFd::as_fd));
        (Request::Boot(config), fds)
    }
}
