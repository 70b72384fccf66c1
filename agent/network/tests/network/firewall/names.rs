//! Pins: addresses of names.

use std::time::{Duration, Instant};

use sandpiper_network::pin::Pinned;
use sandpiper_policy::PinTier;

use super::probe::Answer;
use super::world::{TICK, World, eventually, only, policy, policy_with, texts};

pub(crate) fn pin(tier: PinTier, address: &str, port: Option<u16>) -> Pinned {
    Pinned { tier, address: address.parse().unwrap(), port, life: Duration::from_secs(60) }
}

#[test]
fn an_allowed_names_address_is_open_but_for_the_web_which_asks_the_proxy_and_quic() {
    let world = World::new();
    world.apply(&only(&["api.example.test"]));
    for (address, host) in [("198.51.100.7", "198.51.100.7"), ("2001:db8::7", "[2001:db8::7]")] {
        let to = |port: u16| format!("{host}:{port}").parse().unwrap();
        assert_eq!(world.tcp(to(22)), Answer::Nobody);
        world.firewall.pin(&[pin(PinTier::AllowOut, address, None)]).unwrap();
        assert_eq!(world.tcp(to(22)), Answer::Internet);
        assert_eq!(world.tcp(to(80)), Answer::Proxy);
        assert_eq!(world.tcp(to(443)), Answer::Proxy);
        assert_eq!(world.udp(to(443)), Answer::Nobody);
        assert_eq!(world.udp(to(5000)), Answer::Internet);
        assert_eq!(world.icmp(address.parse().unwrap()), Answer::Internet);
    }
    assert_eq!(world.tcp("198.51.100.8:22".parse().unwrap()), Answer::Nobody);
}

#[test]
fn a_pin_with_a_port_is_for_that_port() {
    let world = World::new();
    world.apply(&only(&["api.example.test:8443"]));
    world.firewall.pin(&[pin(PinTier::AllowOut, "198.51.100.7", Some(8443))]).unwrap();
    assert_eq!(world.tcp("198.51.100.7:8443".parse().unwrap()), Answer::Internet);
    assert_eq!(world.tcp("198.51.100.7:443".parse().unwrap()), Answer::Nobody);
    assert_eq!(world.udp("198.51.100.7:8443".parse().unwrap()), Answer::Internet);
    assert_eq!(world.icmp("198.51.100.7".parse().unwrap()), Answer::Nobody);
}

#[test]
fn a_range_decides_before_a_name_and_without_the_proxy() {
    let world = World::new();
    world.apply(&only(&["api.example.test", "198.51.100.0/24"]));
    world.firewall.pin(&[pin(PinTier::AllowOut, "198.51.100.7", None)]).unwrap();
    assert_eq!(world.tcp("198.51.100.7:443".parse().unwrap()), Answer::Internet);
    assert_eq!(world.udp("198.51.100.7:443".parse().unwrap()), Answer::Internet);
}

#[test]
fn pins_are_in_the_order_of_their_tiers() {
    let world = World::new();
    let profiles =
        sandpiper_policy::Profiles::from_json(r#"{"profiles": {"mirror": ["mirror.example.test"]}}"#).unwrap();
    world.apply(&policy_with(&profiles, &Default::default(), |policy| {
        policy.allow_internet_access = false;
        policy.egress_profiles = texts(&["mirror"]);
        policy.allow_out = texts(&["ssh.mirror.example.test:22"]);
        policy.deny_out = texts(&["mirror.example.test:8443", "203.0.113.0/24"]);
    }));
    world
        .firewall
        .pin(&[
            pin(PinTier::Profile, "198.51.100.7", None),
            pin(PinTier::DenyOut, "198.51.100.7", Some(8443)),
            pin(PinTier::Profile, "203.0.113.1", None),
            pin(PinTier::AllowOut, "203.0.113.1", Some(22)),
        ])
        .unwrap();
    assert_eq!(world.tcp("198.51.100.7:22".parse().unwrap()), Answer::Internet);
    assert_eq!(world.tcp("198.51.100.7:443".parse().unwrap()), Answer::Proxy);
    assert_eq!(world.tcp("198.51.100.7:8443".parse().unwrap()), Answer::Nobody);
    assert_eq!(world.tcp("203.0.113.1:22".parse().unwrap()), Answer::Internet);
    assert_eq!(world.tcp("203.0.113.1:8443".parse().unwrap()), Answer::Nobody);
}

#[test]
fn quic_to_a_pinned_address_is_what_it_would_be_without_the_pin() {
    let world = World::new();
    let address = "198.51.100.7:443".parse().unwrap();
    world.apply(&policy(|policy| policy.allow_out = texts(&["api.example.test"])));
    world.firewall.pin(&[pin(PinTier::AllowOut, "198.51.100.7", None)]).unwrap();
    assert_eq!(world.udp(address), Answer::Internet);
    world.apply(&policy(|policy| policy.deny_out = texts(&["api.example.test:443"])));
    world.firewall.pin(&[pin(PinTier::DenyOut, "198.51.100.7", Some(443))]).unwrap();
    assert_eq!(world.udp(address), Answer::Nobody);
    // Which name it is for, the proxy finds out.
    assert_eq!(world.tcp(address), Answer::Proxy);
}

#[test]
fn a_pin_protects_no_protected_address() {
    let world = World::new();
    world.apply(&only(&["api.example.test"]));
    world.firewall.pin(&[pin(PinTier::AllowOut, "10.0.0.1", None)]).unwrap();
    assert_eq!(world.tcp("10.0.0.1:22".parse().unwrap()), Answer::Nobody);
}

#[test]
fn a_pin_expires() {
    let world = World::new();
    world.apply(&only(&["api.example.test"]));
    let mut short = pin(PinTier::AllowOut, "198.51.100.7", None);
    short.life = Duration::from_millis(500);
    let address = "198.51.100.7:22".parse().unwrap();
    let start = Instant::now();
    world.firewall.pin(&[short]).unwrap();
    assert_eq!(world.tcp(address), Answer::Internet);
    eventually("the pin expires", || world.tcp(address) == Answer::Nobody);
    assert!(start.elapsed() + TICK >= short.life, "{:?}", start.elapsed());
}

#[test]
fn a_pin_that_is_renewed_lives_its_new_life() {
    let world = World::new();
    world.apply(&only(&["api.example.test"]));
    let long = pin(PinTier::AllowOut, "198.51.100.7", None);
    let short = Pinned { life: Duration::from_millis(400), ..long };
    let address = "198.51.100.7:22".parse().unwrap();
    let start = Instant::now();
    // In one batch, and in another.
    world.firewall.pin(&[short, pin(PinTier::AllowOut, "198.51.100.8", None)]).unwrap();
    world.firewall.pin(&[long, short]).unwrap();
    while start.elapsed() < 2 * short.life {
        assert_eq!(world.tcp(address), Answer::Internet);
    }
    world.firewall.pin(&[short]).unwrap();
    eventually("the pin expires", || world.tcp(address) == Answer::Nobody);
}
