//! Floods.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use sandpiper_network::config::Limits;

use super::frames::{IPV4, UDP, ethernet, ipv4, udp};
use super::probe::Answer;
use super::world::{World, eventually, policy};

const GUEST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

fn limited(world: &World) -> u64 {
    world.firewall.totals().unwrap().limited
}

#[test]
fn no_more_packets_pass_than_are_allowed_in_a_second() {
    let world = World::with_limits(&Limits { packets: 500, ..Limits::default() });
    world.apply(&policy(|_| {}));
    let server = SocketAddr::from((SERVER, 5000));
    world.internet.echo(&world.outside, server);
    let frame = ethernet(IPV4, &ipv4(GUEST, SERVER, UDP, &[], &udp(GUEST.into(), SERVER.into(), 5000, b"flood")));
    let start = Instant::now();
    world.wire().flood(vec![frame; 5000], || world.internet.received(server) + limited(&world));
    let most = 500.0 * (1.0 + start.elapsed().as_secs_f64());
    let received = world.internet.received(server) as f64;
    assert!(received <= most, "{received} of 5,000 passed, {most} were allowed");
    assert!(received >= 400.0, "{received} of 5,000 passed");
}

#[test]
fn no_more_connections_begin_than_are_allowed_in_a_second() {
    let world = World::with_limits(&Limits { new_connections: 50, ..Limits::default() });
    world.apply(&policy(|_| {}));
    let server = SocketAddr::from((SERVER, 5000));
    world.internet.echo(&world.outside, server);
    let start = Instant::now();
    let sockets: Vec<_> = (0..400).map(|_| world.datagrams_to(server)).collect();
    for socket in &sockets {
        socket.send(b"flood").unwrap();
    }
    let most = 50.0 * (1.0 + start.elapsed().as_secs_f64()) + 1.0;
    eventually("what passed arrives", || world.internet.received(server) + limited(&world) >= 400);
    let received = world.internet.received(server) as f64;
    assert!((40.0..=most).contains(&received), "{received} of 400 passed, {most} were allowed");
    // One that is there already goes on.
    super::probe::exchange(&sockets[0], b"again").unwrap();
}

#[test]
fn no_more_connections_exist_than_are_allowed() {
    let world = World::with_limits(&Limits { connections: 10, ..Limits::default() });
    world.apply(&policy(|_| {}));
    let address = SocketAddr::from((IpAddr::from(SERVER), 22));
    let open: Vec<_> = (0..10).map(|_| world.connect(address).unwrap().0).collect();
    assert_eq!(world.tcp(address), Answer::Nobody);
    assert!(limited(&world) > 0);
    drop(open);
}

#[test]
fn what_is_denied_is_answered_at_a_limited_rate() {
    let world = World::new();
    world.apply(&policy(|policy| policy.allow_internet_access = false));
    let frames = (1..=3000)
        .map(|port| ethernet(IPV4, &ipv4(GUEST, SERVER, UDP, &[], &udp(GUEST.into(), SERVER.into(), port, b"flood"))));
    let totals = || world.firewall.totals().unwrap();
    let start = Instant::now();
    world.wire().flood(frames, || totals().policy + totals().limited);
    let most = 100.0 * (1.0 + start.elapsed().as_secs_f64());
    // The names of the counters, and then the counters; the first is that of messages received.
    let counters = world.guest.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let received = counters.lines().filter_map(|line| line.strip_prefix("Icmp: ")).nth(1).unwrap();
    let received: f64 = received.split(' ').next().unwrap().parse().unwrap();
    assert!((1.0..=most).contains(&received), "{received} answers to 3,000 packets, {most} were allowed");
}
