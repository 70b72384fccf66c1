//! An internet of the tests' own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::json;

const NAMESPACE: &str = "sandpiper-internet";
/// The host's end of the line to it.
const LINK: &str = "spinet0";
const SERVER: &str = include_str!("internet.py");

/// Its name server, and addresses of its servers. None of them is protected.
pub const RESOLVER: &str = "203.0.113.10";
pub const API: &str = "203.0.113.20";
pub const WWW: &str = "203.0.113.30";
pub const EVIL: &str = "198.51.100.66";
/// Has no server of its own but those that listen everywhere; and, on port 5000, the tests' registry.
pub const REGISTRY: &str = "203.0.113.40";
/// Servers in the networks of the host's operator: its own machines, its provider's service for machines' secrets.
pub const PRIVATE: [&str; 3] = ["10.66.6.6", "192.168.66.6", "169.254.66.66"];
/// In a range by itself.
pub const RANGE: &str = "198.51.100.0/24";

/// An internet that the tests made: a namespace with addresses that count as public, a name server, and servers that
/// remember who came. TCP 22, 853 and 9999 say where they are and echo; 80, 443 and 8080 answer with their address and the
/// name that they were called by; UDP 443 and 9999 echo.
pub struct Internet {
    arrivals: &'static Mutex<Vec<Arrival>>,
}

/// Something that reached a server.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub struct Arrival {
    /// `tcp`, `tls`, `http`, `udp` or `dns`.
    pub protocol: String,
    pub address: String,
    pub port: u16,
    pub peer: String,
    /// Of a request or a query; the content of a datagram.
    pub name: Option<String>,
}

impl Internet {
    /// The internet of this process, made on first use.
    pub fn shared() -> &'static Self {
        static INTERNET: OnceLock<Internet> = OnceLock::new();
        INTERNET.get_or_init(Self::make)
    }

    fn make() -> Self {
        let _ = Command::new("ip").args(["netns", "delete", NAMESPACE]).stderr(Stdio::null()).status();
        lay_lines();
        let folder = tempfile::tempdir().expect("a folder").keep();
        let certificate = rcgen::generate_simple_self_signed(zone().map(|(name, _)| name.to_owned()).to_vec());
        let certificate = certificate.expect("a certificate");
        let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
        std::fs::write(&chain, certificate.cert.pem()).expect("a file");
        std::fs::write(&key, certificate.signing_key.serialize_pem()).expect("a file");
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", NAMESPACE, "python3", "-c", SERVER, NAMESPACE])
            .args([&chain, &key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
        }
        let arrivals: &'static Mutex<Vec<Arrival>> = Box::leak(Box::default());
        let (ready, is_ready) = mpsc::channel();
        // The server gets its signal when the thread that started it ends: this one lasts as long as the process.
        std::thread::spawn(move || {
            let mut child = command.spawn().expect("ip and python3 are installed");
            let zone: serde_json::Map<_, _> =
                zone().into_iter().map(|(name, addresses)| (name.to_owned(), json!(addresses))).collect();
            let mut input = child.stdin.take().expect("a pipe");
            input.write_all(&serde_json::to_vec(&zone).expect("JSON")).expect("the server reads its zone");
            drop(input);
            for line in BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(arrival) => arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrival),
                    Err(_) => drop(ready.send(())),
                }
            }
            let _ = child.wait();
        });
        is_ready.recv_timeout(Duration::from_secs(120)).expect("the test's internet is up");
        Self { arrivals }
    }

    /// What has reached it so far.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A program in this internet, as a server of its own.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", NAMESPACE]).arg(program);
        command
    }

    /// What of it came to these addresses.
    pub fn arrivals_of(&self, addresses: &[&str]) -> Vec<Arrival> {
        self.arrivals().into_iter().filter(|arrival| addresses.contains(&arrival.address.as_str())).collect()
    }
}

/// What its name server knows.
fn zone() -> [(&'static str, &'static [&'static str]); 8] {
    [
        ("api.example.test", &[API]),
        ("www.example.test", &[WWW]),
        ("evil.example.test", &[EVIL]),
        ("registry.example.test", &[REGISTRY]),
        ("six.example.test", &["2001:db8:1::20"]),
        // Public names that point where nobody may go.
        ("loopback.example.test", &["127.0.0.1", "::1"]),
        ("private.example.test", &["10.0.2.2", "192.168.0.1"]),
        ("metadata.example.test", &["169.254.169.254", API]),
    ]
}

fn lay_lines() {
    let inside = |arguments: &str| ip(&format!("-n {NAMESPACE} {arguments}"));
    ip(&format!("netns add {NAMESPACE}"));
    ip(&format!("link add {LINK} type veth peer name eth0 netns {NAMESPACE}"));
    ip(&format!("address add 203.0.113.1/24 dev {LINK}"));
    ip(&format!("link set {LINK} up"));
    for address in [RESOLVER, API, WWW, REGISTRY] {
        inside(&format!("address add {address}/24 dev eth0"));
    }
    for address in [EVIL, "198.51.100.7"] {
        inside(&format!("address add {address}/32 dev eth0"));
    }
    inside("address add 2001:db8:1::20/64 dev eth0 nodad");
    inside("link set lo up");
    inside("link set eth0 up");
    inside("route add default via 203.0.113.1");
    ip(&format!("route replace {RANGE} via {RESOLVER}"));
    for address in PRIVATE {
        inside(&format!("address add {address}/32 dev eth0"));
        ip(&format!("route replace {address}/32 via {RESOLVER}"));
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}
