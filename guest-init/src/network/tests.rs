//! Each on a thread in a network namespace of its own, whose `eth0` is one end of a cable, and which is gone with the
//! thread. Needs root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;

fn network() -> GuestNetwork {
    GuestNetwork {
        mac: [2, 0, 0, 0, 0, 7],
        address: "100.64.0.2".parse().unwrap(),
        prefix_length: 30,
        gateway: "100.64.0.1".parse().unwrap(),
        address6: "fd5a:5a::2".parse().unwrap(),
        prefix_length6: 64,
        gateway6: "fd5a:5a::1".parse().unwrap(),
        mtu: 1400,
    }
}

fn in_a_namespace(test: fn()) {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may");
        test();
    };
    thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn plug_in() {
    ip("link set lo up");
    ip("link add eth0 type veth peer name far");
    ip("link set far up");
}

/// What iproute2 says, without the spaces between its words.
fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The whole of what the device is.
fn state() -> [String; 5] {
    ["-o link show eth0", "-o -4 addr show eth0", "-o -6 addr show eth0", "-4 route", "-6 route"].map(ip)
}

#[test]
fn a_new_device_gets_its_addresses_and_routes_and_nothing_else() {
    in_a_namespace(|| {
        plug_in();

        apply(Some(&network())).unwrap();

        let [link, ipv4, ipv6, routes4, routes6] = state();
        assert!(link.contains("mtu 1400") && link.contains(",UP") && link.contains("02:00:00:00:00:07"), "{link}");
        assert!(ipv4.contains("inet 100.64.0.2/30 scope global eth0"), "{ipv4}");
        // One, which can be used at once, and none that the kernel has made up.
        assert!(ipv6.contains("inet6 fd5a:5a::2/64 scope global nodad"), "{ipv6}");
        assert_eq!((ipv6.matches("inet6").count(), ipv6.contains("tentative")), (1, false), "{ipv6}");
        assert!(routes4.starts_with("default via 100.64.0.1 dev eth0"), "{routes4}");
        assert!(routes6.contains("default via fd5a:5a::1 dev eth0"), "{routes6}");
        assert_eq!(setting("accept_ra").unwrap().trim(), "0");
    });
}

#[test]
fn a_device_that_somebody_has_set_up_already_gets_its_settings() {
    in_a_namespace(|| {
        plug_in();
        ip("link set eth0 up");

        apply(Some(&network())).unwrap();

        assert_eq!(
            SETTINGS.map(|(name, _)| setting(name).unwrap().trim().to_owned()),
            SETTINGS.map(|(_, value)| value)
        );
    });
}

#[test]
fn a_second_time_changes_nothing() {
    in_a_namespace(|| {
        plug_in();
        apply(Some(&network())).unwrap();
        ip("addr add 198.51.100.7/24 dev eth0");
        let before = state();

        apply(Some(&network())).unwrap();

        assert_eq!(state(), before);
    });
}

#[test]
fn a_clone_has_another_hardware_address_and_no_neighbours_and_its_sockets_live() {
    in_a_namespace(|| {
        plug_in();
        apply(Some(&network())).unwrap();
        let listener = TcpListener::bind((network().address, 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let learn = || {
            ip("neigh replace 100.64.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud reachable");
            ip("neigh replace fd5a:5a::1 lladdr 02:00:00:00:00:99 dev eth0 nud reachable");
        };

        learn();
        apply(Some(&GuestNetwork { mac: [2, 0, 0, 0, 0, 8], ..network() })).unwrap();
        assert!(state()[0].contains("02:00:00:00:00:08"));
        assert_eq!(ip("neigh show dev eth0 nud reachable"), "");
        // The host may be another although the address is the same.
        learn();
        apply(Some(&GuestNetwork { mac: [2, 0, 0, 0, 0, 8], ..network() })).unwrap();
        assert_eq!(ip("neigh show dev eth0 nud reachable"), "");

        near.write_all(b"still here").unwrap();
        let mut heard = [0; 10];
        far.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"still here");
    });
}

#[test]
fn without_a_network_the_device_is_down_if_there_is_one() {
    in_a_namespace(|| {
        apply(None).unwrap();
        plug_in();
        apply(Some(&network())).unwrap();

        apply(None).unwrap();

        assert!(state()[0].contains("state DOWN"), "{}", state()[0]);
        assert_eq!(ip("-4 route"), "");
    });
}

#[test]
fn a_sandbox_that_has_switched_ipv6_off_goes_without() {
    in_a_namespace(|| {
        plug_in();
        set("disable_ipv6", "1").unwrap();

        apply(Some(&network())).unwrap();

        let [_, ipv4, ipv6, ..] = state();
        assert!(ipv4.contains("100.64.0.2/30"));
        assert_eq!(ipv6, "");
    });
}

#[test]
fn without_a_device_the_message_says_so() {
    in_a_namespace(|| {
        let error = apply(Some(&network())).unwrap_err();
        assert!(matches!(error, NetworkError::NoDevice));
    });
}

#[test]
fn what_the_kernel_refuses_is_named() {
    in_a_namespace(|| {
        plug_in();
        let far_away = GuestNetwork { gateway: "203.0.113.1".parse().unwrap(), ..network() };

        let error = apply(Some(&far_away)).unwrap_err();

        assert!(
            matches!(&error, NetworkError::Step { what: "route through eth0", source }
            if source.raw_os_error() == Some(libc::ENETUNREACH)),
            "{error}"
        );
    });
}
