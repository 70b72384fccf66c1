//! A policy that changes while connections are open.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sandpiper_policy::PinTier;

use super::internet::PUSH;
use super::names::pin;
use super::probe::{Answer, exchange};
use super::world::{TIMEOUT, World, only, policy, texts};

/// Whether a connection still carries something there and back.
fn alive(stream: &mut TcpStream) -> bool {
    let mut echo = [0; 4];
    stream.write_all(b"ping").and_then(|()| stream.read_exact(&mut echo)).is_ok() && &echo == b"ping"
}

#[test]
fn what_a_new_policy_forbids_is_cut_and_what_it_allows_goes_on() {
    let world = World::new();
    world.apply(&policy(|_| {}));
    let connect = |address: &str| world.connect(address.parse().unwrap()).unwrap().0;
    let [mut kept, mut kept6] = ["198.51.100.7:22", "[2001:db8::7]:22"].map(connect);
    let [mut cut, mut cut6] = ["203.0.113.1:22", "[2001:db8:1::1]:22"].map(connect);
    let datagrams = world.datagrams_to("198.51.100.7:5000".parse().unwrap());
    world.internet.echo(&world.outside, "198.51.100.7:5000".parse().unwrap());
    exchange(&datagrams, b"one").unwrap();

    world.apply(&only(&["198.51.100.0/24", "[2001:db8::7]:22"]));
    assert!(alive(&mut kept) && alive(&mut kept6));
    exchange(&datagrams, b"two").unwrap();
    // They are reset, rather than left to find out.
    assert!(!alive(&mut cut) && !alive(&mut cut6));

    // And back: what was cut can be made again.
    world.apply(&policy(|_| {}));
    assert!(alive(&mut kept) && alive(&mut kept6));
    assert!(alive(&mut connect("203.0.113.1:22")));
}

#[test]
fn what_comes_in_is_cut_too_though_the_guest_is_silent() {
    let world = World::new();
    world.apply(&policy(|_| {}));
    let address = "198.51.100.7:5000".parse().unwrap();
    world.internet.echo(&world.outside, address);
    let datagrams = world.datagrams_to(address);
    exchange(&datagrams, PUSH).unwrap();
    let mut datagram = [0; 16];
    datagrams.recv(&mut datagram).unwrap();

    world.apply(&policy(|policy| policy.deny_out = texts(&["198.51.100.7:5001"])));
    // What was in the socket before, and something new.
    for _ in 0..1000 {
        datagrams.recv(&mut datagram).unwrap();
    }

    world.apply(&policy(|policy| policy.deny_out = texts(&["198.51.100.7"])));
    datagrams.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let start = Instant::now();
    while datagrams.recv(&mut datagram).is_ok() {
        assert!(start.elapsed() < TIMEOUT, "datagrams still come in");
    }
}

#[test]
fn a_connection_that_a_pin_allowed_lives_as_long_as_the_pin_is_handed_on() {
    let world = World::new();
    let (policy, pins) = (only(&["api.example.test"]), [pin(PinTier::AllowOut, "198.51.100.7", None)]);
    world.firewall.apply(&policy, 100, &pins).unwrap();
    let mut stream = world.connect("198.51.100.7:22".parse().unwrap()).unwrap().0;

    world.firewall.apply(&policy, 101, &pins).unwrap();
    assert!(alive(&mut stream));
    world.firewall.apply(&only(&["other.example.test"]), 102, &[]).unwrap();
    assert!(!alive(&mut stream));
}

#[test]
fn a_connection_goes_on_when_its_pin_has_expired() {
    let world = World::new();
    world.apply(&only(&["api.example.test"]));
    let mut short = pin(PinTier::AllowOut, "198.51.100.7", None);
    short.life = Duration::from_millis(300);
    world.firewall.pin(&[short]).unwrap();
    let address = "198.51.100.7:22".parse().unwrap();
    let mut stream = world.connect(address).unwrap().0;
    super::world::eventually("the pin expires", || world.tcp(address) == Answer::Nobody);
    assert!(alive(&mut stream));
}

#[test]
fn a_connection_that_went_past_the_proxy_is_cut_when_its_name_begins_to_matter() {
    let world = World::new();
    world.apply(&policy(|_| {}));
    let (mut direct, answer) = world.connect("198.51.100.7:443".parse().unwrap()).unwrap();
    assert_eq!(answer, Answer::Internet);
    let mut other = world.connect("198.51.100.7:22".parse().unwrap()).unwrap().0;

    let names_matter = policy(|policy| policy.deny_out = texts(&["bad.example.test"]));
    world.apply(&names_matter);
    assert!(!alive(&mut direct));
    assert!(alive(&mut other));
    let (mut by_proxy, answer) = world.connect("198.51.100.7:443".parse().unwrap()).unwrap();
    assert_eq!(answer, Answer::Proxy);

    // The proxy is told of policies and looks after its own: it knows the name, whose pin may be gone by now.
    world.apply(&names_matter);
    assert!(alive(&mut by_proxy));
    world.apply(&policy(|policy| policy.allow_internet_access = false));
    assert!(alive(&mut by_proxy));
}

#[test]
fn a_change_that_the_kernel_refuses_changes_nothing() {
    let world = World::new();
    world.apply(&only(&["198.51.100.7"]));
    let mut stream = world.connect("198.51.100.7:22".parse().unwrap()).unwrap().0;
    // More than the set holds, some of them there already.
    let pins: Vec<_> = (0..6000_u32)
        .map(|number| pin(PinTier::AllowOut, &std::net::Ipv4Addr::from(0xc000_0200 + number).to_string(), None))
        .collect();
    let error = world.firewall.pin(&pins).unwrap_err();
    assert!(error.to_string().contains("`allow_pin4`"), "{error:?}");
    assert!(alive(&mut stream));
    assert_eq!(world.tcp("192.0.2.0:22".parse().unwrap()), Answer::Nobody);

    // A policy with as many takes those that fit.
    world.firewall.apply(&only(&["api.example.test"]), 100, &pins).unwrap();
    let pinned = |number: u32| world.tcp((std::net::Ipv4Addr::from(0xc000_0200 + number), 22).into());
    assert_eq!((pinned(0), pinned(5999)), (Answer::Internet, Answer::Nobody));
}
