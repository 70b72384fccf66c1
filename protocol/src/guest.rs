//! What passes between the host and PID 1 of a guest, over virtio-vsock.
//!
//! Three things cross this border:
//!
//! * **The link** ([`LINK_PORT`]), opened by the guest as the first thing PID 1 does, kept for the life of the guest and
//!   opened again whenever it breaks (the agent restarted, the sandbox was restored). JSON, one message a line:
//!   the agent sends [`HostMessage::Init`] at once, without being asked; the guest applies it, serves the data plane and
//!   answers [`GuestMessage::Ready`], or [`GuestMessage::Failed`]. The agent treats everything it reads as hostile:
//!   lines are limited to [`MAX_LINK_LINE`] bytes. Nothing else in the guest, and nothing outside the host, can reach it:
//!   the monitor lets only privileged source ports of the guest connect here, and the proxy never does.
//! * **The data plane** ([`DATA_PLANE_PORT`]): HTTP/1.1, connected to by the agent's proxy.
//! * **Forwarding** ([`FORWARD_PORT`]): the agent connects, writes a decimal TCP port and a newline, reads one line,
//!   [`FORWARD_OK`] or [`FORWARD_REFUSED`]; after the former the stream is that of 127.0.0.1:port in the guest.
//!
//! Host side: a stream socket of the monitor. A client writes `CONNECT <vsock port>\n` and reads `OK <n>\n`; a refused
//! connection is closed without an answer.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::template::{ImageSettings, StartCommand};

/// The host's address on vsock (`VMADDR_CID_HOST`).
pub const HOST_CID: u32 = 2;
/// Every guest's address: each has a monitor of its own, so all may be the same and a clone needs no renumbering.
pub const GUEST_CID: u32 = 3;

/// Host port that the guest connects to for the link.
pub const LINK_PORT: u32 = 1024;
/// Guest port of the data plane's HTTP server.
pub const DATA_PLANE_PORT: u32 = 49983;
/// Guest port of TCP forwarding.
pub const FORWARD_PORT: u32 = 1025;

/// The guest connects the link from a source port below this, which only root may bind.
pub const PRIVILEGED_PORTS: u32 = 1024;

/// Longest line on the link, newline included.
pub const MAX_LINK_LINE: usize = 64 * 1024;

/// Where a guest's programs find the generation: a decimal number and a newline, replaced by renaming.
pub const GENERATION_FILE: &str = "/run/sandpiper/generation";

/// A guest whose disks are frozen and that hears nothing more thaws itself after this many seconds of its own time.
pub const FREEZE_LIMIT_SECONDS: u64 = 30;

/// Answers of the forwarder, without the newline.
pub const FORWARD_OK: &str = "ok";
pub const FORWARD_REFUSED: &str = "refused";

/// What the message of [`GuestMessage::NotMounted`] or [`GuestMessage::Failed`] begins with when it is what is on the volume's
/// disk that cannot be mounted.
pub const DAMAGED_VOLUME: &str = "The volume is damaged";

/// The same when it is the place that it is to be mounted at: a symbolic link is on the way, for instance.
pub const REFUSED_MOUNT: &str = "The volume cannot be mounted at";

/// Where a helper guest has the volume that it serves.
pub const VOLUME_FOLDER: &str = "/volume";

fn yes() -> bool {
    true
}

/// One of the steps by which a guest becomes ready: microseconds since it was told who it is.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct GuestStep {
    pub name: String,
    pub from_us: u64,
    pub to_us: u64,
}

/// From the agent to PID 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "the largest is the most frequent, and there are never many")]
pub enum HostMessage {
    Init(Init),
    /// Bring the guest to rest for a snapshot. Answered with [`GuestMessage::Frozen`] or [`GuestMessage::NotFrozen`]. What was
    /// written before is on the disks then.
    ///
    /// What undoes it: [`HostMessage::Thaw`] and [`HostMessage::Init`].
    Freeze {
        /// Stop everything that the data plane started first, so that after a restore none of it runs before the guest knows
        /// who it is.
        processes: bool,
        /// Let nothing more be written: whoever takes the disk without the memory finds it at rest. Guests of earlier versions
        /// do so always.
        #[serde(default = "yes")]
        disks: bool,
        /// Stay so for however long it takes; else for [`FREEZE_LIMIT_SECONDS`] at most. Guests of earlier versions stay so
        /// where `disks` is false.
        #[serde(default)]
        stays: bool,
    },
    /// Answered with [`GuestMessage::Thawed`].
    Thaw,
    /// Mount these, after an [`Self::Unmount`]. Answered with [`GuestMessage::Mounted`] or [`GuestMessage::NotMounted`].
    Mount {
        mounts: Vec<GuestMount>,
    },
    /// Write down and unmount every mount, so that its disk can be taken away. Answered with [`GuestMessage::Unmounted`] or
    /// [`GuestMessage::NotUnmounted`].
    Unmount {
        /// Also what a process uses, whose reads and writes fail from then on.
        force: bool,
    },
    /// Make an empty ext4 file system on this extra disk. Only asked of guests of the agent's own template. Answered with
    /// [`GuestMessage::Formatted`] or [`GuestMessage::NotFormatted`].
    Format {
        slot: u8,
    },
    /// The answer to [`GuestMessage::AskTime`].
    Time {
        /// Nanoseconds since 1970.
        unix_time_ns: u64,
    },
}

/// The environment variable by which the first process of a machine knows that it is to be **bare**: to leave the disk it was booted
/// from, and to wait in memory for the root disk of the sandbox that it becomes. The kernel hands it on from its command line.
pub const BARE: &str = "SANDPIPER_BARE";

/// How the root file system is mounted: every clone of a machine would go on writing zeros where it has grown, and look through it.
pub const ROOT_OPTIONS: &str = "noinit_itable,no_prefetch_block_bitmaps";

/// Everything a guest must know of itself. Sent on every link; a guest applies it once in each `generation`.
#[derive(Clone, Serialize, Deserialize)]
pub struct Init {
    pub sandbox_id: String,
    pub hostname: String,
    /// The host's wall clock, nanoseconds since 1970.
    pub unix_time_ns: u64,
    /// Environment of every process that the data plane starts.
    pub envs: BTreeMap<String, String>,
    /// User of processes and files where a request names none.
    pub default_user: String,
    /// 32 bytes from the host's generator, hexadecimal, mixed into the kernel's.
    pub entropy: String,
    /// Grows with every start, resume and fork. Programs of the guest read it, and watch it, in [`GENERATION_FILE`].
    pub generation: u64,
    /// Bytes of the root disk. A bare guest enters it, once it has this size; any other is on it since it booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_bytes: Option<u64>,
    /// Without it the guest has no network but its own loopback.
    #[serde(default)]
    pub network: Option<GuestNetwork>,
    /// Mounted before the guest is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<GuestMount>,
    /// The guest is of the agent's own template, and its data plane also serves what is mounted at [`VOLUME_FOLDER`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves_volume: bool,
    /// What the template's image says of processes: below `envs`, and below what a request names.
    #[serde(default, skip_serializing_if = "ImageSettings::is_empty")]
    pub settings: ImageSettings,
    /// Run once in each boot, as a process of the data plane with the tag [`START_TAG`]; it runs already after a restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartCommand>,
    /// Whether what processes write is told with [`GuestMessage::Output`]. Unlike all else this is also applied where the
    /// generation is the same as before. Guests of earlier versions do not know it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capture_output: bool,
}

/// How a [`GuestMessage::Log`] begins that tells of a start command which does not run, or has ended with an error.
pub const START_ENDED: &str = "The start command has ended";

/// Tag of the process that a template's start command is.
pub const START_TAG: &str = "start";

/// A volume in a guest.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct GuestMount {
    /// Which of the extra disks: see [`EXTRA_DISKS`](crate::vmm::EXTRA_DISKS).
    pub slot: u8,
    /// As [`check_mount_path`](crate::volume::check_mount_path) wants it. Made if it is not there.
    pub path: String,
}

/// The guest's `eth0`. All but `mac` is the same in every sandbox, so that a clone needs no renumbering.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct GuestNetwork {
    pub mac: [u8; 6],
    pub address: Ipv4Addr,
    pub prefix_length: u8,
    /// Also the resolver.
    pub gateway: Ipv4Addr,
    pub address6: Ipv6Addr,
    pub prefix_length6: u8,
    pub gateway6: Ipv6Addr,
    /// Longest packet in bytes.
    pub mtu: u16,
}

/// `envs` are a tenant's secrets and `entropy` must stay unknown: neither is printed.
impl std::fmt::Debug for Init {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Init")
            .field("sandbox_id", &self.sandbox_id)
            .field("hostname", &self.hostname)
            .finish_non_exhaustive()
    }
}

/// From PID 1 to the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GuestMessage {
    /// The data plane responds from now on.
    Ready {
        init_version: String,
        /// What the guest did since it was told who it is; this message is the end of the last step. Those of earlier versions
        /// do not say.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        steps: Vec<GuestStep>,
        /// It does what [`Init::capture_output`] says. Those of earlier versions do not.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        captures_output: bool,
        /// It is on no disk, and waits to be told of one. Guests of earlier versions stay on theirs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_bare: bool,
    },
    /// The guest cannot be used, and why.
    Failed {
        message: String,
    },
    Frozen {
        /// Its disks, too, whether that was asked for or not.
        #[serde(default = "yes")]
        disks: bool,
    },
    /// The file systems could not be frozen; nothing is frozen now.
    NotFrozen {
        message: String,
    },
    Thawed,
    Mounted,
    /// Nothing of the message is mounted now.
    NotMounted {
        message: String,
    },
    Unmounted {
        /// Slots whose disk is used by processes that had files open when it was forced away. They cannot be mounted again
        /// until those have ended.
        held: Vec<u8>,
    },
    /// Something uses a volume; all are mounted as before.
    NotUnmounted {
        message: String,
    },
    Formatted,
    NotFormatted {
        message: String,
    },
    /// Asks for [`HostMessage::Time`]: how long the answer takes tells how exact it is.
    AskTime,
    /// Something an operator or the sandbox's owner may want to read.
    Log {
        level: LogLevel,
        message: String,
    },
    /// What processes have written, where [`Init::capture_output`] asks for it. Never before the guest is told who it is, and
    /// never while it is frozen.
    Output {
        lines: Vec<OutputLine>,
        /// Lines that were dropped because more was written than the link takes.
        #[serde(default, skip_serializing_if = "is_zero")]
        left_out: u64,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Bytes of a line's text at most; what is beyond is cut off.
pub const MAX_OUTPUT_LINE: usize = 2048;

/// A line that a process wrote.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct OutputLine {
    pub stream: OutputStream,
    /// Of the process that the data plane started; the line may be that of one of its children.
    pub pid: u32,
    /// The file name of its program.
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Without its end.
    pub text: String,
    /// The line was longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Where a process wrote a line.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Info,
    Warn,
    Error,
}
