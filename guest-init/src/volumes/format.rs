//! Making the file system that every new volume begins with.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, Command, Stdio};
use std::time::Duration;

use sandpiper_durable::blocking;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::VolumeError;
use super::device::Disk;
use crate::reap::{self, Exit, Spawning};

/// For mkfs, which writes little.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that are taken of what it complains about.
const MAX_COMPLAINT: u64 = 2048;

/// The disk is new and holds zeros only: none are written to it, so that an empty volume takes next to nothing, and none are left
/// for the kernel to write later, in each volume again. The journal is short, and no blocks are set aside for root.
pub(super) const OPTIONS: [&str; 15] = [
    "-q",
    "-F",
    "-b",
    "4096",
    "-m",
    "0",
    "-I",
    "256",
    "-J",
    "size=16",
    "-O",
    "64bit,metadata_csum,extent,flex_bg,dir_index,resize_inode,^orphan_file",
    "-E",
    "assume_storage_prezeroed=1,root_owner=0:0",
    "-L",
];

/// Label of the file system: all volumes begin as copies of one.
const LABEL: &str = "volume";

/// Makes an empty file system on `disk`, which holds nothing but zeros.
pub(super) async fn format(disk: Disk) -> Result<(), VolumeError> {
    let failed = |reason: String| VolumeError::Format(reason);
    let started = blocking(move || start(&disk)).await?;
    let Started { pid, exit, complaints } = started;
    let exit = match timeout(LIMIT, exit).await {
        Ok(exit) => exit.ok(),
        Err(_) => {
            reap::signal_group(pid, nix::sys::signal::Signal::SIGKILL);
            return Err(failed(format!("mkfs.ext4 took longer than {} s", LIMIT.as_secs())));
        }
    };
    if exit == Some(Exit::Code(0)) {
        return Ok(());
    }
    let said = spawn_blocking(move || {
        let mut said = Vec::new();
        complaints.take(MAX_COMPLAINT).read_to_end(&mut said).map(|_| said)
    });
    let said = said.await.ok().and_then(Result::ok).unwrap_or_default();
    Err(failed(format!("mkfs.ext4 failed: {}", String::from_utf8_lossy(&said).trim())))
}

struct Started {
    pid: i32,
    exit: oneshot::Receiver<Exit>,
    complaints: ChildStderr,
}

fn start(disk: &Disk) -> Result<Started, VolumeError> {
    disk.appears()?;
    let mut command = Command::new("mkfs.ext4");
    command.args(OPTIONS).arg(LABEL).arg(&disk.node).env_clear().env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let spawning = Spawning::begin();
    let not_started = |error: String| VolumeError::Format(format!("mkfs.ext4 cannot be started: {error}"));
    let mut child = command.spawn().map_err(|error| not_started(error.to_string()))?;
    let pid = i32::try_from(child.id()).map_err(|error| not_started(error.to_string()))?;
    let exit = spawning.claim(pid);
    let complaints = child.stderr.take().ok_or_else(|| not_started("it has no standard error".to_owned()))?;
    Ok(Started { pid, exit, complaints })
}
