//! A host of a test's own: a network namespace and a mount namespace in which a thread, and all that it starts, lives. In
//! front of it is another one, the internet.
//!
//! ```text
//!   internet  198.51.100.2 ──── 198.51.100.1  host
//!             2001:db8:1::2     2001:db8:1::1
//!             203.0.113.10, 2001:db8:2::10
//! ```

use std::future::Future;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use sandpiper_network::config::Config;
use sandpiper_network::netns::Netns;

/// Longest that a test waits for something that must come.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest that it waits for an answer that must not come. The kernel answers in microseconds what it answers at all.
pub(crate) const SILENCE: Duration = Duration::from_millis(700);

/// Addresses of the host, and of a server on the internet.
pub(crate) const HOST: [&str; 2] = ["198.51.100.1", "2001:db8:1::1"];
pub(crate) const SERVER: [&str; 2] = ["203.0.113.10", "2001:db8:2::10"];
/// Where proxies of slots count, by default.
pub(crate) const METERS: &str = "/run/sandpiper/network";
/// Where servers of these tests listen.
pub(crate) const PORT: u16 = 7777;

/// Runs a test in a host of its own, which ends with it.
pub(crate) fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce(Host) -> F + Send + 'static) {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        // What is mounted from here on is this thread's own, the names of namespaces above all.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        for folder in ["/run/netns", METERS] {
            std::fs::create_dir_all(folder).unwrap();
            mount(Some("sandpiper-test"), folder, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        }
        let host = Host::new();
        // Its threads are made by this one, and so live here too.
        tokio::runtime::Runtime::new().unwrap().block_on(test(host));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) struct Host {
    pub(crate) internet: Netns,
}

impl Host {
    fn new() -> Self {
        let internet = Netns::create("internet").unwrap();
        ip("link set lo up");
        ip("link add eth0 type veth peer name eth0 netns internet");
        ip("link set eth0 up");
        ip("-n internet link set lo up");
        ip("-n internet link set eth0 up");
        for (here, there) in [("198.51.100.1/24", "198.51.100.2/24"), ("2001:db8:1::1/64", "2001:db8:1::2/64")] {
            ip(&format!("addr add {here} dev eth0{}", nodad(here)));
            ip(&format!("-n internet addr add {there} dev eth0{}", nodad(there)));
        }
        for address in SERVER {
            ip(&format!("-n internet addr add {address} dev lo{}", nodad(address)));
        }
        ip("route add default via 198.51.100.2");
        ip("route add default via 2001:db8:1::2");
        Self { internet }
    }

    /// What can be seen of slots: names of namespaces, links, rules, and files in which proxies count.
    pub(crate) fn traces(&self) -> [String; 4] {
        let links = run("ip", &["-o", "link"]);
        let links: Vec<_> = links.lines().filter_map(|link| link.split_whitespace().nth(1)).collect();
        [run("ip", &["netns"]), links.join("\n"), run("nft", &["list", "ruleset"]), run("ls", &[METERS])]
    }
}

/// For an address of IPv6 that is to be there at once.
pub(crate) fn nodad(address: &str) -> &'static str {
    if address.contains(':') { " nodad" } else { "" }
}

/// A configuration for tests: few slots, none of which is made before it is asked for.
pub(crate) fn config(change: impl FnOnce(&mut Config)) -> Arc<Config> {
    let mut config = Config { max_slots: 20, pool: 0, ..Config::default() };
    change(&mut config);
    config.check().unwrap();
    Arc::new(config)
}

pub(crate) fn ip(arguments: &str) {
    run("ip", &arguments.split(' ').collect::<Vec<_>>());
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {stderr}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TIMEOUT, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A server that tells each of its clients which address it sees, in the namespace of the thread that makes it.
pub(crate) fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind((address, PORT))?;
    thread::spawn(move || {
        while let Ok((mut client, peer)) = listener.accept() {
            let _ = io::Write::write_all(&mut client, peer.ip().to_string().as_bytes());
        }
    });
    Ok(())
}

/// Which address the server at `address` sees, asked by the calling thread's namespace.
pub(crate) fn ask(address: &str) -> io::Result<String> {
    ask_within(TIMEOUT, address)
}

pub(crate) fn ask_within(limit: Duration, address: &str) -> io::Result<String> {
    let to = (address.parse::<IpAddr>().unwrap(), PORT).into();
    let server = TcpStream::connect_timeout(&to, limit)?;
    server.set_read_timeout(Some(TIMEOUT))?;
    io::read_to_string(server)
}

/// Sends a datagram from one of the calling thread's addresses; that it leaves is all that is known then.
pub(crate) fn send(from: &str, to: &str, text: &str) -> io::Result<()> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.send_to(text.as_bytes(), (to, PORT))?;
    Ok(())
}
