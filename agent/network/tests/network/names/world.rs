//! A guest, its slot, a host and an internet, each a namespace:
//!
//! ```text
//!  guest 100.64.0.2 --- tap0 100.64.0.1 slot      host 203.0.113.1 --- 203.0.113.2 internet 198.51.100.0/24
//!        fd5a:5a::2          fd5a:5a::1                2001:db8:1::1    2001:db8:1::2         2001:db8::/64
//! ```
//!
//! The slot redirects TCP 80 and 443 to the proxy and forwards nothing. Tests run in the host.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandpiper_network::meter::Meter;
use sandpiper_network::names::{Limits, Names, Sockets};
use sandpiper_network::netns::{self, Netns};
use sandpiper_network::pin::{Pinned, Pins};
use sandpiper_network::upstream::Upstream;
use sandpiper_policy::{Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::internet::Internet;

/// For anything that should happen at once, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) const GATEWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(100, 64, 0, 1));

const REDIRECT: &str = "table inet t { chain c { type nat hook prerouting priority dstnat; \
     iifname tap0 tcp dport { 80, 443 } redirect to :15080; }; }";

/// A namespace that is removed at the end, also of a test that panics.
struct Named(String);

impl Named {
    fn make(role: &str, number: u32) -> Self {
        let named = Self(format!("spn{}-{number}-{role}", std::process::id()));
        Netns::create(&named.0).unwrap();
        named.ip("link set lo up");
        named
    }

    fn open(&self) -> Netns {
        Netns::open(&self.0).unwrap()
    }

    fn ip(&self, arguments: &str) {
        let status = Command::new("ip").args(["-n", &self.0]).args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    fn link(&self, own: &str, other: &Self, others: &str) {
        self.ip(&format!("link add {own} type veth peer name {others} netns {}", other.0));
        self.ip(&format!("link set {own} up"));
        other.ip(&format!("link set {others} up"));
    }

    fn nft(&self, rules: &str) {
        let mut nft = Command::new("ip")
            .args(["netns", "exec", &self.0, "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "nft");
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = netns::remove(&self.0);
    }
}

pub(crate) struct World {
    guest: Netns,
    slot: Netns,
    host: Netns,
    pub(crate) internet: Internet,
    pub(crate) upstream: Upstream,
    /// Of the guest's names.
    pub(crate) meter: Arc<Meter>,
    meters: tempfile::TempDir,
}

/// Makes a world and runs a test in its host.
pub(crate) fn in_a_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Send) {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    let [guest, slot, host, internet] = ["guest", "slot", "host", "net"].map(|role| Named::make(role, number));

    guest.link("eth0", &slot, "tap0");
    guest.ip("addr add 100.64.0.2/30 dev eth0");
    guest.ip("addr add fd5a:5a::2/64 dev eth0 nodad");
    guest.ip("route add default via 100.64.0.1");
    slot.ip("addr add 100.64.0.1/30 dev tap0");
    slot.ip("addr add fd5a:5a::1/64 dev tap0 nodad");
    guest.ip("route add default via fd5a:5a::1");
    slot.nft(REDIRECT);

    host.link("eth0", &internet, "eth0");
    host.ip("addr add 203.0.113.1/24 dev eth0");
    host.ip("addr add 2001:db8:1::1/64 dev eth0 nodad");
    internet.ip("addr add 203.0.113.2/24 dev eth0");
    internet.ip("addr add 2001:db8:1::2/64 dev eth0 nodad");
    host.ip("route add 198.51.100.0/24 via 203.0.113.2");
    host.ip("route add 2001:db8::/64 via 2001:db8:1::2");
    // Every address of these is the internet's; servers of version 6 need one that is on a device.
    internet.ip("route add local 198.51.100.0/24 dev lo");
    internet.ip("addr add 2001:db8::1/64 dev lo nodad");

    let [guest_netns, slot_netns, host_netns, internet_netns] = [&guest, &slot, &host, &internet].map(Named::open);
    let outcome = host.open().run(|| {
        // Threads that this one makes are in its namespace, too.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            let internet = Internet::start(internet_netns).await;
            let upstream = Upstream::new(&[internet.dns.address]).unwrap();
            let meters = tempfile::tempdir().unwrap();
            let meter = Arc::new(Meter::open(&meters.path().join("guest")).unwrap());
            let (guest, slot, host) = (guest_netns, slot_netns, host_netns);
            test(World { guest, slot, host, internet, upstream, meter, meters }).await;
        });
        Ok(())
    });
    outcome.unwrap();
}

/// Keeps the pins that it is given, or refuses them.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) pins: Mutex<Vec<Pinned>>,
    pub(crate) broken: bool,
    /// How often it was asked, also while somebody holds `pins`.
    pub(crate) asked: AtomicU32,
}

impl Recorder {
    /// Tier, address and port of each, as text, in order of their text.
    pub(crate) fn told(&self) -> Vec<String> {
        told(&self.pins.lock().unwrap())
    }
}

impl Pins for Recorder {
    fn pin(&self, pins: &[Pinned]) -> std::io::Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.broken {
            return Err(std::io::Error::other("broken"));
        }
        self.pins.lock().unwrap().extend_from_slice(pins);
        Ok(())
    }
}

pub(crate) fn told(pins: &[Pinned]) -> Vec<String> {
    let mut told: Vec<_> = pins
        .iter()
        .map(|pin| {
            let port = pin.port.map_or_else(String::new, |port| format!(" {port}"));
            format!("{:?} {}{port}", pin.tier, pin.address)
        })
        .collect();
    told.sort();
    told
}

pub(crate) fn policy(internet: bool, allow_out: &[&str], deny_out: &[&str]) -> Arc<Policy> {
    let owned = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
    let policy = NetworkPolicy {
        allow_internet_access: internet,
        allow_out: owned(allow_out),
        deny_out: owned(deny_out),
        ..NetworkPolicy::default()
    };
    Arc::new(Policy::compile(&policy, &Profiles::default(), &Platform::default()).unwrap())
}

impl World {
    /// Names for the guest, and their pins.
    pub(crate) async fn sandbox(&self, policy: Arc<Policy>) -> (Names, Arc<Recorder>) {
        self.sandbox_within(policy, Limits::default(), Recorder::default())
    }

    pub(crate) fn sandbox_within(
        &self,
        policy: Arc<Policy>,
        limits: Limits,
        recorder: Recorder,
    ) -> (Names, Arc<Recorder>) {
        let sockets = Sockets::bind(&self.slot, &[GATEWAY, "fd5a:5a::1".parse().unwrap()]).unwrap();
        let recorder = Arc::new(recorder);
        let meter = Arc::clone(&self.meter);
        (Names::start(sockets, policy, recorder.clone(), &self.upstream, meter, limits), recorder)
    }

    /// Names for somebody else on the host, and a socket that is connected to that forwarder.
    pub(crate) async fn neighbour(&self, policy: Arc<Policy>) -> (Names, UdpSocket) {
        self.neighbour_at("127.0.0.2", policy, Arc::default()).await
    }

    pub(crate) async fn neighbour_at(
        &self,
        address: &str,
        policy: Arc<Policy>,
        recorder: Arc<Recorder>,
    ) -> (Names, UdpSocket) {
        let address: IpAddr = address.parse().unwrap();
        let sockets = Sockets::bind(&self.host, &[address]).unwrap();
        let meter = Arc::new(Meter::open(&self.meters.path().join("neighbour")).unwrap());
        let names = Names::start(sockets, policy, recorder, &self.upstream, meter, Limits::default());
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect((address, 53)).await.unwrap();
        (names, socket)
    }

    /// A connection that the guest makes.
    pub(crate) async fn connect(&self, to: &str) -> TcpStream {
        let to: SocketAddr = to.parse().unwrap();
        let stream = self.guest.run(|| std::net::TcpStream::connect(to)).unwrap();
        stream.set_nonblocking(true).unwrap();
        TcpStream::from_std(stream).unwrap()
    }

    /// A socket of the guest, connected to the forwarder.
    pub(crate) fn dns_socket(&self) -> UdpSocket {
        let make = || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((GATEWAY, 53))?;
            Ok(socket)
        };
        let socket = self.guest.run(make).unwrap();
        socket.set_nonblocking(true).unwrap();
        UdpSocket::from_std(socket).unwrap()
    }
}

/// What comes until the connection ends, one way or the other.
pub(crate) async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("the connection should end");
    bytes
}

/// Puts another policy in force, and tells what the firewall was given with it.
pub(crate) async fn change(names: &Names, policy: Arc<Policy>) -> Vec<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let apply = move |_: &Policy, pins: &[Pinned]| sender.send(told(pins));
    names.change(policy, apply).await.unwrap();
    receiver.recv().unwrap()
}

/// Waits for something that nobody tells of.
pub(crate) async fn until(happened: impl Fn() -> bool) {
    let waiting = async {
        while !happened() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, waiting).await.expect("it should happen");
}
