//! What the agent asks of one monitor.
//!
//! A monitor is started with a listening `SOCK_SEQPACKET` Unix socket and a file for its exit record, both as
//! descriptors; it opens nothing by path. The agent connects (again after its own restart: the newest connection is the
//! one that gets events) and sends [`Request`]s, each answered by one [`Reply`] with the same `id`, in order; the monitor
//! may send [`Event`]s in between. One message is one packet: JSON, at most [`MAX_MESSAGE`] bytes, with the descriptors
//! that the message names as `SCM_RIGHTS`, at most [`MAX_FDS`].
//!
//! ```text
//!                        ┌──────── Snapshot {then: pause} ────────┐
//!   waiting ──Prepare──▶ prepared ──Boot, Restore──▶ running      ▼
//!      └──────────────────Boot, Restore────────────────▶ ▲     paused
//!                                                        └─Resume─┘
//!   any ──the guest ends, Stop, or an error──▶ (process ends, exit record written)
//! ```
//!
//! A running machine that writes to a disk for which the host has no room is **held**: no vCPU runs, the write is tried
//! again and again, and when it works the machine runs on by itself. Requests treat it as a running one. A snapshot of it
//! has the write as not yet done, so it is done again by whatever goes on from there.
//!
//! # What a snapshot is made of
//! * The **state** file: everything of a machine but its memory and disks, versioned and checksummed. Only the monitor
//!   knows its form.
//! * The **memory layers**, bottom first: sparse files as large as the guest's memory, each of whose holes is the layer
//!   below, and zeros below the bottom. A snapshot of a machine that was booted is one layer; of one that was restored,
//!   the layers that it was restored from and a new one on top, which holds the pages written since.
//! * The disks' layers, which are files of the agent: see [`SnapshotConfig::push_layers`].

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recv, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};

/// Disks that every machine has behind those of [`MachineConfig::disks`], of no size until [`Request::AttachDisk`]. A snapshot is
/// taken only while all of them are empty, so one snapshot serves machines with and without them.
pub const EXTRA_DISKS: u8 = 4;

/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors with one message.
pub const MAX_FDS: usize = 64;
/// Most descriptors that Linux takes with one message (`include/net/scm.h`).
const SCM_MAX_FD: usize = 253;

/// One packet from the agent.
#[derive(Debug, Serialize, Deserialize)]
pub struct RequestMessage {
    pub id: u64,
    pub request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Builds the machine and starts it. Descriptors, in this order: the kernel (an uncompressed ELF `vmlinux`), then for
    /// each disk its layers, bottom first (all but the last opened read-only, the last for reading and writing unless the
    /// disk is `read_only`), then the vsock listener (a listening stream socket), then, with `net`, the tap, then, with
    /// `console`, the file that gets what the guest writes to its serial port.
    Boot(MachineConfig),
    /// Makes everything of a machine that depends on its shape only, so that a `Boot` or `Restore` of this shape is
    /// quicker. Without descriptors. One of another shape works too, without the advantage.
    Prepare(Shape),
    /// Builds a machine from a snapshot and lets it go on. Descriptors, in this order: the state, the memory layers, the
    /// working set if there is one, then disks, vsock, tap and console as for `Boot`. All but top disk layers, vsock, tap
    /// and console are opened read-only. Refused with [`FaultCode::BadSnapshot`] when the snapshot is damaged or not for this host.
    Restore(RestoreConfig),
    /// Begins the memory layer of a snapshot while the machine runs. One descriptor: an empty file, open for reading and writing,
    /// which the next `Snapshot` is to have as its memory layer: that then writes only what was written since. When it fails, which
    /// it does on kernels that do not note what is written, the file has to be emptied, and a `Snapshot` writes everything.
    CopyMemory {
        /// What this layer is called, for the layers above it.
        #[serde(default)]
        name: Option<String>,
        /// The layer that this one lies right above, if its machine was last written down in that one: then it holds only what
        /// was written since. Otherwise, and in monitors of before, it lies right above those that the machine was restored from.
        #[serde(default)]
        above: Option<String>,
        /// Nothing is begun where the machine wrote less than so many bytes: they are copied faster while it stands still.
        /// Monitors of before begin always.
        #[serde(default)]
        least_bytes: u64,
        /// As in [`SnapshotConfig`].
        #[serde(default)]
        past_cache: bool,
    },
    /// Stops a running machine and writes down what it is. Descriptors, in this order: a file for the state and one for the
    /// new memory layer, both empty, but for `CopyMemory`, and open for reading and writing, then, with `push_layers`, an empty file for each disk
    /// that is not read-only. Nothing is synchronised: that is for the caller, after the machine runs again. When it fails
    /// the machine runs on as before, and what is in the files is of no use.
    Snapshot(SnapshotConfig),
    /// Lets a paused machine go on where it stopped.
    Resume,
    /// Puts a new layer on top of a disk, of a running or a paused machine; writes that the guest was told of are in the
    /// layers below. One descriptor: an empty file.
    PushLayer {
        /// Index in [`MachineConfig::disks`].
        disk: u32,
    },
    /// Puts a disk into one of the slots of [`EXTRA_DISKS`], which are empty until then: the guest sees a disk of no size get
    /// one. Of a machine that runs, that was just started, or that is paused. Descriptors: the disk's layers, as for `Boot`.
    AttachDisk {
        /// Below [`EXTRA_DISKS`].
        slot: u8,
        disk: DiskConfig,
        limits: DiskLimits,
    },
    /// Takes the disk out of a slot again: requests that the guest has under way are finished first, later ones fail, and the
    /// guest sees a disk of no size. Nothing is synchronised. Of an empty slot: done already.
    DetachDisk { slot: u8 },
    /// Notes which pages of memory were touched since the machine was restored: the working set has them first. What is touched
    /// after that it has too, but not as written, for many a guest does not get so far and needs no copy of its own.
    NoteTouched,
    /// Writes down which pages of memory were touched since the machine was restored, for later restores of the same
    /// snapshot to fetch at once. One descriptor: an empty file.
    SaveWorkingSet,
    /// How the machine is.
    Status,
    /// Ends the process at once; the exit record says `stopped`.
    Stop,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct MachineConfig {
    /// 1 to 64.
    pub vcpus: u8,
    /// Guest memory in MiB, at least 32.
    pub memory_mib: u32,
    /// Appended to the monitor's own kernel arguments.
    pub kernel_args: String,
    pub disks: Vec<DiskConfig>,
    /// Of each disk.
    pub disk_limits: DiskLimits,
    pub net: Option<NetConfig>,
    /// A 16550A at 0x3f8, for debugging: what it prints costs start time.
    pub console: bool,
}

/// The network device: an Ethernet device whose frames pass through a tap. The tap has `IFF_VNET_HDR` and headers of 12
/// bytes; it does not block.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct NetConfig {
    /// The address that the device tells a driver which boots. One that was restored is told by the guest's own means.
    pub mac: [u8; 6],
    pub limits: NetLimits,
}

/// Most that passes in a second, each way for itself; a second's worth may pass at once. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq, Hash)]
pub struct NetLimits {
    /// Of frames without the tap's header.
    pub bytes_per_second: Option<u64>,
    /// Frames; one that the guest had segmented later counts as one.
    pub packets_per_second: Option<u64>,
}

impl NetLimits {
    /// What keeps both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes_per_second: smaller(self.bytes_per_second, other.bytes_per_second),
            packets_per_second: smaller(self.packets_per_second, other.packets_per_second),
        }
    }
}

/// Most that a disk does in a second, whatever the direction; a second's worth may pass at once. What is over it waits.
/// `None`: no limit.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq, Hash)]
pub struct DiskLimits {
    pub bytes_per_second: Option<u64>,
    /// Requests of any kind.
    pub operations_per_second: Option<u64>,
    pub flushes_per_second: Option<u64>,
}

impl DiskLimits {
    /// What keeps both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes_per_second: smaller(self.bytes_per_second, other.bytes_per_second),
            operations_per_second: smaller(self.operations_per_second, other.operations_per_second),
            flushes_per_second: smaller(self.flushes_per_second, other.flushes_per_second),
        }
    }
}

fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct DiskConfig {
    /// Serial number that the guest sees, at most 20 ASCII characters.
    pub serial: String,
    /// Bytes that the guest sees: a multiple of 4 KiB; layers may be shorter, what they lack reads as their hole.
    pub size: u64,
    /// Number of descriptors of this disk.
    pub layers: u32,
    pub read_only: bool,
}

/// What a machine can be prepared by.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// 1 to 64.
    pub vcpus: u8,
    /// Guest memory in MiB, at least 32.
    pub memory_mib: u32,
}

/// The descriptors of a restore. Everything else is in the state.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct RestoreConfig {
    /// At least 1.
    pub memory_layers: u32,
    pub working_set: bool,
    /// A working set is about to be made of what the guest touches: the kernel is not to map the pages around each along with it.
    /// Monitors of before have more in a set.
    #[serde(default)]
    pub tells_touched: bool,
    /// Number of layers of each disk, in the order of [`MachineConfig::disks`].
    pub disk_layers: Vec<u32>,
    /// Bytes of each disk, where those of the snapshot's machine have others in their place: the guest, which must not be using them,
    /// is told. Without it they are the same disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk_sizes: Vec<u64>,
    pub disk_limits: DiskLimits,
    /// There if, and only if, the machine of the snapshot has a network device.
    pub net: Option<NetConfig>,
    /// Whether the machine of the snapshot has a console, which must be so.
    pub console: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// Each disk goes on with a new top layer, so that the layers below it are as they were at the snapshot's instant.
    pub push_layers: bool,
    pub then: Then,
    /// Long stretches of memory go to the disk past the page cache: nobody is about to read them. Monitors of before have all of it
    /// in the cache.
    #[serde(default)]
    pub past_cache: bool,
}

/// What a machine does once it was written down.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// It goes on at once.
    Run,
    /// It stays stopped until `Resume` or `Stop`.
    Pause,
}

/// What a snapshot took.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct SnapshotStats {
    /// Bytes written to the state and to the memory layer.
    pub state_bytes: u64,
    pub memory_bytes: u64,
    /// How long no vCPU ran, until the machine went on or, with [`Then::Pause`], was written down.
    pub stopped_us: u64,
}

/// One packet from the monitor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MonitorMessage {
    Reply { id: u64, result: Result<Reply, Fault> },
    Event(Event),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    Prepared,
    Booted(Timings),
    Restored(Timings),
    /// There is less to copy than asked for, and nothing was begun.
    LittleMemory,
    MemoryCopied {
        /// The layer lies above the one that was named.
        #[serde(default)]
        above: bool,
    },
    Snapshot(SnapshotStats),
    Resumed,
    LayerPushed,
    DiskAttached,
    DiskDetached,
    TouchedNoted,
    WorkingSetSaved,
    Status {
        state: MachineState,
        timings: Timings,
    },
    Stopping,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum MachineState {
    Waiting,
    Prepared,
    Running,
    /// It runs again by itself, as soon as the host has room for what it wrote.
    Held,
    Paused,
}

/// A refused request. The monitor goes on as before it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub code: FaultCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum FaultCode {
    /// Not a request of this protocol, or with other descriptors than it names.
    Malformed,
    /// Understood, and not possible in the present state.
    InvalidState,
    /// The machine cannot be built as asked.
    BadConfig,
    /// The snapshot is damaged, in a form that this monitor does not know, or of a CPU or a KVM that could do more than this
    /// host's.
    BadSnapshot,
    /// KVM or the kernel refused.
    Host,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The guest connected to this vsock port of the host; the packet's one descriptor is the host's end, a stream
    /// socket. Without an agent connected the guest's attempt is reset.
    GuestConnected {
        port: u32,
    },
    Disk(DiskEvent),
}

/// What the host's disks do to a machine.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "disk_event", rename_all = "snake_case")]
pub enum DiskEvent {
    /// The machine is held: there is no room for what the guest wrote.
    Full(DiskFailure),
    /// There is room, and the machine goes on.
    Room,
    /// The guest was told of an I/O error. At most one such event in a second: `total` counts all since the machine's start.
    Failed { failure: DiskFailure, total: u64 },
}

/// What the host could not do with a disk's layer.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct DiskFailure {
    /// Index in [`MachineConfig::disks`]; the slots of [`EXTRA_DISKS`] follow.
    pub disk: u32,
    /// In the order of the disk's descriptors, then of those that were pushed on top.
    pub layer: u32,
    /// A verb: read, write, sync, …
    pub operation: String,
    /// Where in the layer, in bytes; a sync has no place.
    pub offset: Option<u64>,
    pub errno: i32,
}

/// Microseconds of `CLOCK_MONOTONIC` at which each step was reached, 0 for one not reached yet.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Timings {
    /// The process entered `main`.
    pub process_start_us: u64,
    /// The request to boot or to restore was read.
    pub boot_request_us: u64,
    /// Just before the first vCPU entered the guest, for the first time or again after the restore.
    pub first_instruction_us: u64,
    /// PID 1 opened its link to the host.
    pub guest_init_us: u64,
}

/// The exit record: one JSON object, written to the record's descriptor as the last thing a monitor does. A monitor that
/// was killed leaves it empty.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExitRecord {
    pub reason: ExitReason,
    pub message: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// The agent asked for it.
    Stopped,
    /// The guest powered itself off.
    GuestPoweredOff,
    /// The guest reset itself: a reboot, or a triple fault.
    GuestReset,
    /// The guest's kernel panicked.
    GuestPanicked,
    /// KVM, a device or the monitor failed; the message says what.
    Failed,
}

/// Sends one packet.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_MESSAGE`] bytes or [`MAX_FDS`] descriptors, otherwise what `sendmsg` reports:
/// `BrokenPipe` when the peer has closed, `WouldBlock` on a non-blocking socket that is full.
pub fn send(socket: BorrowedFd<'_>, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    if json.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message over the protocol's limits"));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &rights[..0] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&json)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// One received packet, not yet understood.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Receives one packet; `None` when the peer closed. On a non-blocking socket `WouldBlock` comes through.
///
/// # Errors
/// A packet over the limits (`InvalidData`), otherwise what `recvmsg` reports.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    let length = recv(socket.as_raw_fd(), &mut [], MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
    let mut bytes = vec![0; length.min(MAX_MESSAGE)];
    // Room for the most that Linux passes at once, so that no descriptor can be cut off and lost unowned.
    let mut control = nix::cmsg_space!([RawFd; SCM_MAX_FD]);
    let (length, truncated, fds) = {
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut control), flags)?;
        let mut fds = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just installed these descriptors for this message; nobody else owns them.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        (message.bytes, message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC), fds)
    };
    if length == 0 {
        return Ok(None);
    }
    if truncated || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "packet over the protocol's limits"));
    }
    bytes.truncate(length);
    Ok(Some(Packet { bytes, fds }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    #[test]
    fn agents_and_monitors_of_before_know_nothing_of_layers_above_each_other() {
        #[derive(Deserialize)]
        #[serde(tag = "op", rename_all = "snake_case")]
        enum Before {
            CopyMemory,
        }
        let request =
            Request::CopyMemory { name: Some("b".into()), above: Some("a".into()), least_bytes: 1, past_cache: true };
        let Before::CopyMemory = serde_json::from_value(serde_json::to_value(request).unwrap()).unwrap();

        let request = serde_json::from_str(r#"{"op": "copy_memory"}"#).unwrap();
        assert!(matches!(request, Request::CopyMemory { name: None, above: None, least_bytes: 0, past_cache: false }));
        let reply = serde_json::from_str(r#"{"op": "memory_copied"}"#).unwrap();
        assert!(matches!(reply, Reply::MemoryCopied { above: false }));
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let mut file = tempfile();
        file.write_all(b"layer").unwrap();
        file.rewind().unwrap();

        let request = RequestMessage { id: 7, request: Request::Status };
        send(ours.as_fd(), &request, &[file.as_fd()]).unwrap();

        let mut packet = receive(theirs.as_fd()).unwrap().unwrap();
        let request: RequestMessage = serde_json::from_slice(&packet.bytes).unwrap();
        assert_eq!(request.id, 7);
        let mut text = String::new();
        File::from(packet.fds.remove(0)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "layer");

        drop(ours);
        assert!(receive(theirs.as_fd()).unwrap().is_none());
    }

    fn tempfile() -> File {
        let fd = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        File::from(fd)
    }
}
