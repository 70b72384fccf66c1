//! How long changes take, and that nobody notices them who need not.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sandpiper_network::config::Limits;
use sandpiper_policy::{PinTier, Policy};

use super::names::pin;
use super::probe::{Answer, exchange};
use super::world::{World, policy};

/// A policy of so many entries, as different as they come. `salt` makes another one of it.
fn large(entries: u32, salt: u32) -> Policy {
    policy(|policy| {
        policy.allow_internet_access = false;
        policy.allow_out = (0..entries)
            .map(|number| match number % 4 {
                0 => Ipv4Net::new_assert((0x1400_0000 + (number << 9) + (salt << 8)).into(), 24).to_string(),
                1 => format!("{}:{}", std::net::Ipv4Addr::from(0x2a00_0000 + (number << 9)), 1000 + salt + number % 7),
                2 => IpNet::from(Ipv6Net::new_assert(
                    ((0x2001_0db8_u128 << 96) + (u128::from(number + salt) << 65)).into(),
                    64,
                ))
                .to_string(),
                _ => format!("host-{number}.example.test"),
            })
            .collect();
        policy.allow_out.push("198.51.100.7".to_owned());
        policy.allow_out.push(format!("203.0.113.0/{}:5000", 24 + salt % 4));
    })
}

/// The median, and the 95th of a hundred.
fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 95 / 100])
}

#[test]
fn thousands_of_entries_are_applied() {
    let world = World::new();
    let some: Vec<_> = (0..200).map(|number| pin(PinTier::AllowOut, &format!("192.0.2.{number}"), Some(443))).collect();
    for entries in [10, 1000, 9998] {
        let policies = [large(entries, 0), large(entries, 1)];
        let times = (0..40).map(|round| {
            let start = Instant::now();
            world.firewall.apply(&policies[round % 2], world.next_generation(), &some).unwrap();
            start.elapsed()
        });
        let (p50, p95) = quantiles(times.collect());
        println!("apply of {entries} entries: p50 {p50:?}, p95 {p95:?}");
        assert_eq!(world.tcp("198.51.100.7:22".parse().unwrap()), Answer::Internet);
        assert_eq!(world.tcp("203.0.113.1:22".parse().unwrap()), Answer::Nobody);
    }
    let times = (0..1000).map(|number| {
        let start = Instant::now();
        world.firewall.pin(&[pin(PinTier::AllowOut, &format!("192.0.2.{}", number % 256), None)]).unwrap();
        start.elapsed()
    });
    let (p50, p95) = quantiles(times.collect());
    println!("a pin beside 10,000 entries: p50 {p50:?}, p95 {p95:?}");
}

#[test]
fn two_hundred_changes_lose_nothing_that_both_policies_allow() {
    let world = World::with_limits(&Limits { new_connections: 1_000_000, connections: 1_000_000, ..Limits::default() });
    let policies = [large(400, 0), large(400, 1)];
    world.apply(&policies[0]);
    // By a range, and by a range and a port; the second policy has other ranges for the same addresses.
    let servers = ["198.51.100.7:5000", "203.0.113.1:5000"].map(|address| address.parse::<SocketAddr>().unwrap());
    let streams = servers.map(|server| {
        world.internet.echo(&world.outside, server);
        world.datagrams_to(server)
    });
    std::thread::scope(|scope| {
        let applied = scope.spawn(|| {
            for round in 0..200 {
                world.apply(&policies[round % 2]);
            }
        });
        let mut rounds = 0_u64;
        while !applied.is_finished() {
            for (stream, server) in streams.iter().zip(servers) {
                exchange(stream, &rounds.to_be_bytes()).unwrap();
                // One that begins now is as safe as one that was there before.
                exchange(&world.datagrams_to(server), &rounds.to_be_bytes()).unwrap();
            }
            rounds += 1;
        }
        println!("{} exchanges during 200 changes", rounds * 4);
    });
    assert_eq!(world.firewall.totals().unwrap(), Default::default());
}
