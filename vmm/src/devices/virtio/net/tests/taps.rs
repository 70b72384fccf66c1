//! The device with its thread between two kernels' TCP: one beyond the tap, and one that plays the guest's, whose frames the
//! test carries between a second tap and the device's queues. Both have a network namespace that is gone with its last
//! thread and descriptor. Needs root.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use sandpiper_protocol::vmm::{NetConfig, NetLimits};
use zerocopy::FromBytes;

use super::super::header::{HEADER_LEN, Header, NEEDS_CSUM, NONE};
use super::super::{MAX_FRAME, Net, Tap};
use super::driver::{Driver, all_features};
use crate::devices::virtio::VirtioDevice;

const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const GUEST: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
const TIMEOUT: Duration = Duration::from_secs(60);
/// What each side sends the other.
const AMOUNT: usize = 4 << 20;
/// Of a frame without segmentation.
const LONGEST_PLAIN: usize = 1514;

/// On a thread in a namespace of its own, with a tap that has these addresses: sends the tap, and does `work`.
fn namespace<T: Send + 'static>(
    addresses: [&'static str; 2],
    work: impl FnOnce() -> T + Send + 'static,
) -> (File, JoinHandle<T>) {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a new namespace");
        let tap = make_tap().expect("a tap");
        ip(&["addr", "add", &format!("{}/24", addresses[0]), "dev", "tap0"]);
        ip(&["addr", "add", &format!("{}/64", addresses[1]), "dev", "tap0", "nodad"]);
        ip(&["link", "set", "tap0", "up"]);
        sender.send(tap).expect("somebody waits");
        work()
    });
    (receiver.recv().expect("the namespace is made"), thread)
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn make_tap() -> io::Result<File> {
    let tap = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tap0") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
    let length = libc::c_int::try_from(HEADER_LEN).map_err(io::Error::other)?;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, TUNSETVNETHDRSZ reads one integer; both live until the calls return.
    let results = unsafe {
        [
            libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request),
            libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const length),
        ]
    };
    if results == [0, 0] { Ok(tap) } else { Err(io::Error::last_os_error()) }
}

/// The guest's tap is told what the guest's driver would be: `TUN_F_*`.
fn set_offloads(tap: &File, flags: libc::c_uint) {
    let tap = Tap::new(tap.try_clone().expect("a descriptor")).expect("flags");
    tap.set_offloads(flags).expect("a tap takes them");
}

/// Different on both sides, and so long that a lost or doubled piece shows.
fn content(seed: usize) -> Vec<u8> {
    (0..AMOUNT).map(|at| u8::try_from((at / 3 + at * seed) % 251).expect("small")).collect()
}

fn talk(mut stream: TcpStream, seed: usize) -> Vec<u8> {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    let mut write = stream.try_clone().expect("a descriptor");
    let writer = thread::spawn(move || {
        write.write_all(&content(seed)).expect("the other side reads");
        write.shutdown(Shutdown::Write).expect("it is open");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("the other side writes");
    writer.join().expect("no panic");
    received
}

/// What was seen of the frames of one direction.
#[derive(Debug, Default)]
struct Seen {
    longest: usize,
    unfinished_checksums: usize,
    segmented: usize,
}

impl Seen {
    fn note(&mut self, header: &Header, length: usize) {
        self.longest = self.longest.max(length);
        self.unfinished_checksums += usize::from(header.flags & NEEDS_CSUM != 0);
        self.segmented += usize::from(header.gso_type != NONE);
    }
}

/// The guest's driver between its kernel, which is behind `tap`, and the device.
struct Carrier {
    driver: Driver,
    tap: File,
    /// Chains of the transmit queue that are free.
    free: usize,
    from_guest: Seen,
    to_guest: Seen,
}

impl Carrier {
    fn new(mut driver: Driver, tap: File) -> Self {
        (0..60).for_each(|_| driver.post(&[4096]));
        Self { driver, tap, free: 60, from_guest: Seen::default(), to_guest: Seen::default() }
    }

    /// Carries what there is; the room of what was received is posted again.
    fn carry(&mut self) {
        self.free += self.driver.reclaim();
        let mut bytes = vec![0; HEADER_LEN + MAX_FRAME];
        while self.free > 0
            && let Ok(count) = self.tap.read(&mut bytes)
        {
            let (header, frame) = bytes[..count].split_at(HEADER_LEN);
            let header = Header::read_from_bytes(header).expect("as long");
            self.from_guest.note(&header, frame.len());
            assert!(self.driver.send(&header, frame, &[]));
            self.free -= 1;
        }
        while let Some(frame) = self.driver.received() {
            self.to_guest.note(&frame.header, frame.bytes.len());
            let header = Header { num_buffers: 0.into(), ..frame.header };
            // A kernel that has no room for a frame loses it, as it would one of a wire.
            let _ = self.tap.write(&[zerocopy::IntoBytes::as_bytes(&header), &frame.bytes].concat());
            frame.chains.iter().for_each(|_| self.driver.post(&[4096]));
        }
    }

    /// Carries until `is_done`.
    fn run(&mut self, is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_done() {
            assert!(Instant::now() < deadline, "{:?} {:?}", self.from_guest, self.to_guest);
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polls = [poll(self.driver.line.as_raw_fd()), poll(self.tap.as_raw_fd())];
            // SAFETY: two valid `pollfd`s. Whether all is done is looked at now and then.
            unsafe { libc::poll(polls.as_mut_ptr(), 2, 10) };
            self.driver.line.lower();
            self.carry();
        }
    }
}

/// Has both sides send each other something over TCP through a device whose driver accepts `features`, and says what was
/// seen of it from the guest and to it.
fn transfer(family: usize, features: u64, guest_tap_may: libc::c_uint) -> (Seen, Seen) {
    let port = 4000;
    let address = move |addresses: [&str; 2]| SocketAddr::new(addresses[family].parse::<IpAddr>().expect("one"), port);
    let (ready, is_listening) = mpsc::channel();
    let (tap, host) = namespace(HOST, move || {
        let listener = TcpListener::bind(address(HOST)).expect("a free port");
        ready.send(()).expect("somebody waits");
        talk(listener.accept().expect("the guest connects").0, 7)
    });
    is_listening.recv().expect("it listens");
    let (guest_tap, guest) = namespace(GUEST, move || talk(TcpStream::connect(address(HOST)).expect("reachable"), 11));
    set_offloads(&guest_tap, guest_tap_may);
    let driver = Driver::new(features);
    let mut net = device(tap, &driver);
    let mut carrier = Carrier::new(driver, guest_tap);

    carrier.run(|| host.is_finished() && guest.is_finished());

    net.reset();
    assert!(host.join().expect("no panic") == content(11), "what the guest sent");
    assert!(guest.join().expect("no panic") == content(7), "what the host sent");
    (carrier.from_guest, carrier.to_guest)
}

fn device(tap: File, driver: &Driver) -> Net {
    let config = NetConfig { mac: [2, 0, 0, 0, 0, 1], limits: NetLimits::default() };
    let mut net = Net::new(&config, Tap::new(tap).expect("flags"));
    net.activate(driver.activation()).expect("the thread starts");
    net
}

#[test]
fn tcp_passes_in_segments_that_nobody_has_cut_or_checked() {
    if !Uid::effective().is_root() {
        return;
    }
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    for family in [0, 1] {
        let (from_guest, to_guest) = transfer(family, all_features(), all);
        for seen in [from_guest, to_guest] {
            assert!(seen.longest > 10_000 && seen.segmented > 0 && seen.unfinished_checksums > 0, "{family}: {seen:?}");
        }
    }
}

#[test]
fn tcp_passes_for_a_driver_without_any_feature() {
    if !Uid::effective().is_root() {
        return;
    }
    let (from_guest, to_guest) = transfer(0, 0, 0);

    for seen in [from_guest, to_guest] {
        assert!(seen.longest <= LONGEST_PLAIN && seen.segmented + seen.unfinished_checksums == 0, "{seen:?}");
    }
}

#[test]
fn the_device_needs_a_reset_when_its_tap_is_deleted_and_when_it_is_none() {
    if !Uid::effective().is_root() {
        return;
    }
    let (delete, is_asked) = mpsc::channel::<()>();
    let (tap, host) = namespace(HOST, move || {
        is_asked.recv().expect("somebody asks");
        ip(&["link", "delete", "tap0"]);
    });
    let mut driver = Driver::new(all_features());
    driver.post(&[4096]);
    let _net = device(tap, &driver);
    assert!(!driver.line.is_reset_needed());
    delete.send(()).expect("it waits");
    host.join().expect("no panic");
    driver.line.wait_for_needs_reset();

    let driver = Driver::new(all_features());
    let mut net = device(tempfile::tempfile().expect("a file"), &driver);
    driver.line.wait_for_needs_reset();
    assert_eq!(net.suspend().len(), 2);
}
