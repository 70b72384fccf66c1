//! A guest, a slot and an internet.
//!
//! ```text
//!   guest            slot                        internet
//!   eth0 ═════ tap0 (firewall) up0 ═════════════ down0, and every address is its own
//!   100.64.0.2 100.64.0.1      100.65.0.3/31     100.65.0.2/31
//! ```

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandpiper_network::config::Limits;
use sandpiper_network::firewall::{Firewall, Ruleset};
use sandpiper_network::netns::{self, Netns};
use sandpiper_policy::{Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;

use super::internet::Internet;

pub(crate) const GUEST_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
pub(crate) const SLOT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// Longer than anything takes that happens at all, also on a machine that is busy with something else.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The kernel's clock for time-outs has ticks, of 10 ms at most.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// A namespace whose name goes when the test ends, however it ends.
pub(crate) struct Space {
    pub(crate) name: String,
    pub(crate) netns: Netns,
}

impl Space {
    fn new(what: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("spfw-{}-{number}-{what}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        Self { name, netns }
    }

    /// Has `ip` do these lines within the namespace.
    pub(crate) fn ip(&self, lines: &str) {
        let mut ip = Command::new("ip").args(["-n", &self.name, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        ip.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success(), "ip -batch: {lines}");
    }

    /// What `ip` says within the namespace.
    pub(crate) fn ask_ip(&self, arguments: &[&str]) -> String {
        let output = Command::new("ip").args(["-n", &self.name]).args(arguments).output().unwrap();
        assert!(output.status.success(), "ip {arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn sysctl(&self, key: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{key}"), value));
    }

    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> T {
        self.netns.run(work).unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = netns::remove(&self.name);
    }
}

pub(crate) struct World {
    pub(crate) firewall: Firewall,
    /// First, so that its sockets are closed before the namespaces go.
    pub(crate) internet: Internet,
    pub(crate) guest: Space,
    pub(crate) slot: Space,
    pub(crate) outside: Space,
    generation: AtomicU32,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_limits(&Limits::default())
    }

    pub(crate) fn with_limits(limits: &Limits) -> Self {
        let (guest, slot, outside) = (Space::new("guest"), Space::new("slot"), Space::new("net"));
        slot.ip(&format!(
            "link add tap0 address {} type veth peer name eth0 address {} netns {}\n\
             link add up0 type veth peer name down0 netns {}\n",
            mac(SLOT_MAC),
            mac(GUEST_MAC),
            guest.name,
            outside.name
        ));
        for (key, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")] {
            slot.sysctl(key, value);
        }
        slot.ip("link set lo up\n link set tap0 up\n link set up0 up\n\
                 address add 100.64.0.1/30 dev tap0\n address add fd5a:5a::1/64 dev tap0 nodad\n\
                 address add 100.65.0.3/31 dev up0\n address add fd5a:5b::1/127 dev up0 nodad\n\
                 route add default via 100.65.0.2\n route add default via fd5a:5b::\n");
        // Whatever is sent to this namespace is for it.
        outside.sysctl("ipv6/bindv6only", "1");
        outside.sysctl("ipv6/ip_nonlocal_bind", "1");
        outside.ip("link set lo up\n link set down0 up\n\
                    address add 100.65.0.2/31 dev down0\n address add fd5a:5b::/127 dev down0 nodad\n\
                    route add local 0.0.0.0/0 dev lo table main\n route add local ::/0 dev lo table main\n");
        let firewall = Firewall::open(&slot.netns).unwrap();
        firewall.load(&Ruleset::translate(limits).unwrap()).unwrap();
        firewall.set_guest(GUEST_MAC).unwrap();
        // Now that it is known it may speak.
        guest.sysctl("ipv4/ping_group_range", "0 0");
        guest.ip("link set lo up\n link set eth0 up\n\
                  address add 100.64.0.2/30 dev eth0\n address add fd5a:5a::2/64 dev eth0 nodad\n\
                  route add default via 100.64.0.1\n route add default via fd5a:5a::1\n");
        let internet = Internet::start(&outside, &slot);
        Self { firewall, internet, guest, slot, outside, generation: AtomicU32::new(0) }
    }

    /// Puts a policy in force, with no pins.
    pub(crate) fn apply(&self, policy: &Policy) {
        self.firewall.apply(policy, self.next_generation(), &[]).unwrap();
    }

    pub(crate) fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A policy, compiled for a host whose operator chose nothing.
pub(crate) fn policy(change: impl FnOnce(&mut NetworkPolicy)) -> Policy {
    policy_with(&Profiles::default(), &Platform::default(), change)
}

pub(crate) fn policy_with(profiles: &Profiles, platform: &Platform, change: impl FnOnce(&mut NetworkPolicy)) -> Policy {
    let mut policy = NetworkPolicy::default();
    change(&mut policy);
    Policy::compile(&policy, profiles, platform).unwrap()
}

pub(crate) fn only(entries: &[&str]) -> Policy {
    policy(|policy| {
        policy.allow_internet_access = false;
        policy.allow_out = texts(entries);
    })
}

pub(crate) fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
