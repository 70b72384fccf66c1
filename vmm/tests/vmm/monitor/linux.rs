//! A Linux guest with the project's own first process: booted, written down, and restored twice from the same snapshot.
//!
//! `SANDPIPER_TEST_KERNEL` names a guest kernel, `SANDPIPER_TEST_ROOT` an ext4 image with `/sbin/sandpiper-init`, which is
//! not written to; /dev/kvm must run Linux. `scripts/vmx` provides all of it on Intel's VMX, and leaves its image for
//! whoever wants to see the same on AMD's SVM, in the nested host:
//!
//! ```sh
//! cargo test --workspace --test vmm --no-run      # prints the name of the tests' program
//! export SANDPIPER_TEST_KERNEL=$(kernel-config/build)
//! export SANDPIPER_TEST_ROOT=/var/cache/sandpiper/vmx/run/tree/guest/root.ext4
//! scripts/host -- PROGRAM --nocapture monitor::linux::
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;

use super::support::{Monitor, TIMEOUT, kvm_is_usable, vsock_listener};
use sandpiper_protocol::guest::{DATA_PLANE_PORT, GENERATION_FILE, GuestMessage, HostMessage, Init};
use sandpiper_protocol::vmm::{
    DiskConfig, DiskEvent, DiskLimits, EXTRA_DISKS, MachineConfig, MachineState, Reply, Request, RestoreConfig,
    SnapshotConfig, Then,
};
use sandpiper_skip::skipped;

#[test]
fn linux_goes_on_after_each_of_two_restores_as_if_nothing_had_been() {
    let Some(image) = Image::named() else { return };

    let first = LinuxGuest::boot(&image);
    first.data_plane.put("/dev/shm/memory", "kept in memory");
    first.data_plane.put("/disk", "kept on disk");
    let snapshot = first.snapshot();

    for generation in 2..4 {
        let clone = LinuxGuest::restore(&snapshot, generation);
        assert_eq!(clone.data_plane.get("/dev/shm/memory"), "kept in memory");
        assert_eq!(clone.data_plane.get("/disk"), "kept on disk");
        assert_eq!(clone.data_plane.get(GENERATION_FILE), format!("{generation}\n"));
        // Nothing of this is in the next restore.
        clone.data_plane.put("/dev/shm/memory", "changed");
        clone.data_plane.put("/disk", "changed");
        clone.stop();
    }
}

#[test]
fn linux_stands_still_while_the_host_has_no_room_and_loses_nothing() {
    let Some(image) = Image::named() else { return };
    let host = SmallDisk::mount();
    let (first, second) = ("first, ".repeat(300_000), "second, ".repeat(100_000));

    let mut guest = LinuxGuest::boot_on(&image, host.create("top"));
    guest.data_plane.put("/disk", &first);
    host.leave(1 << 20);
    guest.link.send(&HostMessage::Freeze { processes: false, disks: true, stays: false });
    let DiskEvent::Full(failure) = guest.monitor.agent.disk_event() else { panic!("another event") };
    assert_eq!((failure.layer, failure.errno), (1, libc::ENOSPC));
    let status = guest.monitor.agent.request(Request::Status, &[]);
    assert!(matches!(status, Ok(Reply::Status { state: MachineState::Held, .. })), "{status:?}");
    host.make_room();
    assert!(matches!(guest.monitor.agent.disk_event(), DiskEvent::Room));
    assert!(matches!(guest.link.answer(), GuestMessage::Frozen { .. }));
    assert!(matches!(guest.link.ask(&HostMessage::Thaw), GuestMessage::Thawed));

    // Once more, and this time it is written down while it stands still.
    guest.data_plane.put("/again", &second);
    host.leave(0);
    guest.link.send(&HostMessage::Freeze { processes: false, disks: true, stays: false });
    assert!(matches!(guest.monitor.agent.disk_event(), DiskEvent::Full(_)));
    let snapshot = guest.write_down();
    host.make_room();
    let mut restored = LinuxGuest::restore(&snapshot, 2);
    assert!(matches!(
        restored.link.ask(&HostMessage::Freeze { processes: false, disks: true, stays: false }),
        GuestMessage::Frozen { .. }
    ));
    assert!(matches!(restored.link.ask(&HostMessage::Thaw), GuestMessage::Thawed));
    assert!(restored.data_plane.get("/disk") == first && restored.data_plane.get("/again") == second);
    restored.stop();
}

#[test]
fn linux_sees_disks_come_and_go_also_after_a_restore() {
    let Some(image) = Image::named() else { return };

    let mut first = LinuxGuest::boot(&image);
    first.attach_and_detach();
    let snapshot = first.snapshot();

    let mut clone = LinuxGuest::restore(&snapshot, 2);
    clone.attach_and_detach();
    clone.stop();
}

/// A file system of 32 MiB, of which a file takes what nothing else shall have.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    const SIZE: u64 = 32 << 20;

    fn mount() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={}", Self::SIZE);
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self(folder)
    }

    fn create(&self, name: &str) -> File {
        File::options().read(true).write(true).create_new(true).open(self.0.path().join(name)).unwrap()
    }

    /// Leaves so many bytes free, or fewer, as the guest writes meanwhile.
    fn leave(&self, free: u64) {
        let (mut filler, statistics) = (self.create("filler"), statvfs(self.0.path()).unwrap());
        let available = statistics.blocks_available() * statistics.fragment_size();
        match io::copy(&mut io::repeat(0).take(available.checked_sub(free).unwrap()), &mut filler) {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => panic!("{error}"),
            _ => {}
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// What a guest is booted from.
struct Image {
    kernel: File,
    root: File,
}

impl Image {
    /// Those that the environment names. Without, says so where nobody overlooks it.
    fn named() -> Option<Self> {
        let file = |variable| {
            let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
                skipped("the monitor with a Linux guest", format!("{variable} names none"));
                return None;
            };
            Some(File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        };
        let (kernel, root) = (file("SANDPIPER_TEST_KERNEL")?, file("SANDPIPER_TEST_ROOT")?);
        kvm_is_usable().then_some(Self { kernel, root })
    }
}

/// A guest that was written down.
struct Snapshot {
    state: File,
    memory: File,
    /// Of its one disk, bottom first.
    layers: Vec<File>,
}

/// A guest whose first process has said that its data plane answers.
struct LinuxGuest {
    monitor: Monitor,
    link: Link,
    data_plane: DataPlane,
    /// Holds the data plane's socket.
    _folder: tempfile::TempDir,
    layers: Vec<File>,
}

/// A guest's files.
struct DataPlane {
    vsock: PathBuf,
    console: File,
}

impl LinuxGuest {
    fn boot(image: &Image) -> Self {
        Self::boot_on(image, tempfile::tempfile().unwrap())
    }

    /// Boots a guest that writes to `top`.
    fn boot_on(image: &Image, top: File) -> Self {
        let began = Instant::now();
        let config = MachineConfig {
            vcpus: 1,
            memory_mib: 128,
            // Each character on the console is an exit.
            kernel_args: "loglevel=4".into(),
            disks: vec![DiskConfig {
                serial: "root".into(),
                size: image.root.metadata().unwrap().len(),
                layers: 2,
                read_only: false,
            }],
            disk_limits: DiskLimits::default(),
            net: None,
            console: true,
        };
        let layers = vec![image.root.try_clone().unwrap(), top];
        let guest = Self::start(Request::Boot(config), &[&image.kernel], layers, 1);
        println!("boot: {:.1} s", began.elapsed().as_secs_f32());
        guest
    }

    fn restore(snapshot: &Snapshot, generation: u64) -> Self {
        let began = Instant::now();
        let config = RestoreConfig {
            memory_layers: 1,
            working_set: false,
            tells_touched: false,
            disk_layers: vec![3],
            disk_sizes: Vec::new(),
            disk_limits: DiskLimits::default(),
            net: None,
            console: true,
        };
        let mut layers: Vec<_> = snapshot.layers.iter().map(|layer| layer.try_clone().unwrap()).collect();
        layers.push(tempfile::tempfile().unwrap());
        let guest = Self::start(Request::Restore(config), &[&snapshot.state, &snapshot.memory], layers, generation);
        println!("restore: {:.1} s", began.elapsed().as_secs_f32());
        guest
    }

    fn start(request: Request, files: &[&File], layers: Vec<File>, generation: u64) -> Self {
        let mut monitor = Monitor::start();
        let (folder, listener) = vsock_listener();
        let console = tempfile::tempfile().unwrap();
        let mut fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        fds.extend(layers.iter().map(AsFd::as_fd));
        fds.extend([listener.as_fd(), console.as_fd()]);
        monitor.agent.request(request, &fds).unwrap();
        let printed = PrintOnPanic(&console);
        let link = Link::open(monitor.agent.guest_connection(), generation);
        drop(printed);
        let data_plane = DataPlane { vsock: folder.path().join("vsock"), console };
        Self { monitor, link, data_plane, _folder: folder, layers }
    }

    /// Puts a disk into each slot and takes it out again: its size and its serial number, which the guest's kernel asks the
    /// device for, are there meanwhile.
    fn attach_and_detach(&mut self) {
        const MIB: u64 = 1 << 20;
        for (slot, name) in (0..EXTRA_DISKS).zip(["vdb", "vdc", "vdd", "vde"]) {
            let (size, serial) = (format!("/sys/block/{name}/size"), format!("/sys/block/{name}/serial"));
            assert_eq!((self.data_plane.get(&size).as_str(), self.data_plane.get(&serial).as_str()), ("0\n", ""));
            let disk = DiskConfig { serial: format!("volume-{slot}"), size: MIB, layers: 1, read_only: false };
            let layer = tempfile::tempfile().unwrap();
            let attach = Request::AttachDisk { slot, disk, limits: DiskLimits::default() };
            assert!(matches!(self.monitor.agent.request(attach, &[layer.as_fd()]), Ok(Reply::DiskAttached)));
            self.data_plane.wait_for(&size, &format!("{}\n", MIB / 512));
            assert_eq!(self.data_plane.get(&serial), format!("volume-{slot}"));
            let detach = Request::DetachDisk { slot };
            assert!(matches!(self.monitor.agent.request(detach, &[]), Ok(Reply::DiskDetached)));
            self.data_plane.wait_for(&size, "0\n");
            assert_eq!(self.data_plane.get(&serial), "");
        }
    }

    /// Brings the guest's file systems to rest, writes it down and ends it, as a pause does.
    fn snapshot(mut self) -> Snapshot {
        assert!(matches!(
            self.link.ask(&HostMessage::Freeze { processes: true, disks: true, stays: false }),
            GuestMessage::Frozen { .. }
        ));
        self.write_down()
    }

    fn write_down(mut self) -> Snapshot {
        let began = Instant::now();
        let (state, memory) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let request = Request::Snapshot(SnapshotConfig { push_layers: false, then: Then::Pause, past_cache: true });
        let reply = self.monitor.agent.request(request, &[state.as_fd(), memory.as_fd()]).unwrap();
        let Reply::Snapshot(stats) = reply else { panic!("unexpected {reply:?}") };
        println!("snapshot: {:.1} s, {} MiB of memory", began.elapsed().as_secs_f32(), stats.memory_bytes >> 20);
        let layers = std::mem::take(&mut self.layers);
        self.stop();
        Snapshot { state, memory, layers }
    }

    fn stop(mut self) {
        assert!(matches!(self.monitor.agent.request(Request::Stop, &[]), Ok(Reply::Stopping)));
        self.monitor.end();
    }
}

impl DataPlane {
    /// Writes a file in the guest.
    fn put(&self, path: &str, text: &str) {
        let request = format!(
            "POST /files?path={path} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
        self.http(&request);
    }

    /// Reads a file in the guest.
    fn get(&self, path: &str) -> String {
        self.http(&format!("GET /files?path={path} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n"))
    }

    /// Waits until a file in the guest says `text`.
    fn wait_for(&self, path: &str, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.get(path);
            if found == text {
                return;
            }
            assert!(Instant::now() < deadline, "{path} says {found:?}, not {text:?}");
        }
    }

    /// The body of the answer to `request`, which must be a success.
    fn http(&self, request: &str) -> String {
        let _printed = PrintOnPanic(&self.console);
        let mut stream = BufReader::new(UnixStream::connect(&self.vsock).unwrap());
        stream.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(stream.get_mut(), "CONNECT {DATA_PLANE_PORT}\n{request}").unwrap();
        let mut connected = String::new();
        stream.read_line(&mut connected).unwrap();
        assert!(connected.starts_with("OK "), "{connected:?}");
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body.to_owned()
    }
}

/// Shows what the guest printed when a test that holds this fails.
struct PrintOnPanic<'a>(&'a File);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut text = vec![0; usize::try_from(self.0.metadata().unwrap().len()).unwrap()];
            self.0.read_exact_at(&mut text, 0).unwrap();
            println!("the guest's console:\n{}", String::from_utf8_lossy(&text));
        }
    }
}

/// The link that the guest's first process opened, spoken as the agent does.
struct Link(BufReader<UnixStream>);

impl Link {
    /// Tells the guest who it is, and waits until it is ready.
    fn open(stream: UnixStream, generation: u64) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut link = Self(BufReader::new(stream));
        let init = Init {
            sandbox_id: "test".into(),
            hostname: "test".into(),
            unix_time_ns: unix_time_ns(),
            envs: BTreeMap::new(),
            default_user: "root".into(),
            entropy: "5a".repeat(32),
            generation,
            root_bytes: None,
            network: None,
            mounts: Vec::new(),
            serves_volume: false,
            settings: Default::default(),
            start: None,
            capture_output: false,
        };
        let answer = link.ask(&HostMessage::Init(init));
        assert!(matches!(answer, GuestMessage::Ready { .. }), "{answer:?}");
        link
    }

    /// Sends `message` and returns the answer to it.
    fn ask(&mut self, message: &HostMessage) -> GuestMessage {
        self.send(message);
        self.answer()
    }

    fn answer(&mut self) -> GuestMessage {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            match serde_json::from_str(&line).unwrap() {
                GuestMessage::AskTime => self.send(&HostMessage::Time { unix_time_ns: unix_time_ns() }),
                GuestMessage::Log { message, .. } => println!("guest: {message}"),
                answer => return answer,
            }
        }
    }

    fn send(&mut self, message: &HostMessage) {
        let line = serde_json::to_string(message).unwrap() + "\n";
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
    }
}

fn unix_time_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}
