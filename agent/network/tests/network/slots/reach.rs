//! What packets of a guest, and of a slot whose own firewall is gone, reach.

use std::io::ErrorKind;
use std::net::UdpSocket;

use sandpiper_network::slots::{Slot, Slots};

use super::guest::Guest;
use super::host::{
    HOST, Host, PORT, SERVER, SILENCE, TIMEOUT, ask, ask_within, config, ip, nodad, on_a_host, run, send, serve, until,
};

/// Does away with a slot's own firewall: from then on only the host's table holds.
fn without_its_firewall(slot: &Slot) {
    run("ip", &["netns", "exec", slot.name(), "nft", "flush", "ruleset"]);
}

fn ask_from(slot: &Slot, address: &str) -> std::io::Result<String> {
    slot.netns().run(|| ask(address))
}

/// A datagram that arrives on the internet, where it tells what was sent.
fn receive(host: &Host, address: &str) -> UdpSocket {
    let socket = host.internet.run(|| UdpSocket::bind((address, PORT))).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn text_of_next(socket: &UdpSocket) -> String {
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn a_guest_reaches_the_internet_by_the_hosts_addresses() {
    on_a_host(async |host| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let (one, other) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        let guests = [Guest::start(&one), Guest::start(&other)];
        for (server, address) in SERVER.into_iter().zip(HOST) {
            host.internet.run(|| serve(server)).unwrap();
            for guest in &guests {
                assert_eq!(guest.netns.run(|| ask(server)).unwrap(), address);
            }
        }
        slots.close().await;
    });
}

#[test]
fn what_a_guest_sends_and_receives_is_counted() {
    on_a_host(async |host| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let slot = slots.take().await.unwrap();
        let guest = Guest::start(&slot);
        host.internet.run(|| serve(SERVER[0])).unwrap();
        let socket = receive(&host, SERVER[0]);
        let before = slot.traffic().read().unwrap();

        guest.netns.run(|| send("0.0.0.0", SERVER[0], &"x".repeat(60))).unwrap();
        text_of_next(&socket);
        guest.netns.run(|| ask(SERVER[0])).unwrap();

        let after = slot.traffic().read().unwrap();
        assert!(after.sent >= before.sent + 60 && after.received > before.received, "{before:?}, then {after:?}");
        slots.close().await;
    });
}

#[test]
fn a_guest_reaches_neither_the_host_nor_another_slot() {
    on_a_host(async |_| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let (one, other) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        let guest = Guest::start(&one);
        Guest::start(&other);
        serve("::").unwrap();
        other.netns().run(|| serve("::")).unwrap();
        // The host by its public addresses and by its ends of both pairs; the other slot; the gateway.
        for address in HOST.into_iter().chain([
            "100.65.0.2",
            "100.65.0.4",
            "100.65.0.5",
            "100.64.0.1",
            "fd5a:5b:0:1::",
            "fd5a:5b:0:2::",
            "fd5a:5b:0:2::1",
            "fd5a:5a::1",
        ]) {
            let answer = guest.netns.run(|| ask(address));
            assert!(answer.is_err(), "{address}: {answer:?}");
        }
        slots.close().await;
    });
}

#[test]
fn a_slot_without_its_firewall_still_reaches_neither_the_host_nor_another_slot() {
    on_a_host(async |host| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let (one, other) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        without_its_firewall(&one);
        without_its_firewall(&other);
        serve("::").unwrap();
        other.netns().run(|| serve("::")).unwrap();
        // Ranges that are protected, and that there is a way to.
        for address in ["10.1.2.3", "fd00::1", "fec0::1"] {
            ip(&format!("-n internet addr add {address} dev lo{}", nodad(address)));
        }
        for server in SERVER.into_iter().chain(["10.1.2.3", "fd00::1", "fec0::1"]) {
            host.internet.run(|| serve(server)).unwrap();
        }
        for server in SERVER {
            ask_from(&one, server).unwrap();
        }
        for address in HOST.into_iter().chain([
            "100.65.0.2",
            "100.65.0.4",
            "100.65.0.5",
            "fd5a:5b:0:1::",
            "fd5a:5b:0:2::",
            "fd5a:5b:0:2::1",
            "10.1.2.3",
            "fd00::1",
            "fec0::1",
        ]) {
            let error = ask_from(&one, address).unwrap_err();
            // Refused at once, not left waiting.
            assert!(error.kind() != ErrorKind::TimedOut && error.kind() != ErrorKind::WouldBlock, "{address}: {error}");
        }
        slots.close().await;
    });
}

#[test]
fn nobody_reaches_a_slot_unasked() {
    on_a_host(async |host| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let slot = slots.take().await.unwrap();
        without_its_firewall(&slot);
        slot.netns().run(|| serve("0.0.0.0")).unwrap();
        // A neighbour on the host's network who takes it for a router, which it is now.
        ip("-n internet route add 100.65.0.0/16 via 198.51.100.1");
        assert!(host.internet.run(|| ask_within(SILENCE, "100.65.0.3")).is_err());
        // It is the host's table that keeps the neighbour out, and nothing else.
        run("nft", &["delete", "table", "inet", "sp"]);
        assert_eq!(host.internet.run(|| ask("100.65.0.3")).unwrap(), "198.51.100.2");
        slots.close().await;
    });
}

#[test]
fn a_slot_sends_from_no_address_but_its_own() {
    on_a_host(async |host| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let (one, other) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        without_its_firewall(&one);
        let others = ["203.0.113.99", "100.65.0.5", "2001:db8:9::1", "fd5a:5b:0:2::1"];
        for address in others {
            ip(&format!("-n {} addr add {address} dev lo{}", one.name(), nodad(address)));
        }
        for (server, own) in SERVER.into_iter().zip(["100.65.0.3", "fd5a:5b:0:1::1"]) {
            let socket = receive(&host, server);
            for spoofed in others.into_iter().filter(|address| address.contains(':') == server.contains(':')) {
                one.netns().run(|| send(spoofed, server, "spoofed")).unwrap();
            }
            one.netns().run(|| send(own, server, "own")).unwrap();
            assert_eq!(text_of_next(&socket), "own");
        }
        // Nor does anyone else send from a slot's.
        let before = run("nft", &["list", "counter", "inet", "sp", "spoofed"]);
        ip("-n internet addr add 100.65.0.5 dev lo");
        host.internet.run(|| send("100.65.0.5", HOST[0], "spoofed")).unwrap();
        until("the packet was counted", || run("nft", &["list", "counter", "inet", "sp", "spoofed"]) != before).await;
        drop(other);
        slots.close().await;
    });
}

#[test]
fn a_range_that_the_operator_opened_can_be_reached() {
    on_a_host(async |host| {
        let slots = Slots::start(
            config(|config| {
                config.allow_ranges = vec!["10.1.0.0/16".parse().unwrap()];
                config.deny_ranges = vec!["203.0.113.0/24".parse().unwrap()];
            }),
            &[],
        );
        let slots = slots.await.unwrap();
        let slot = slots.take().await.unwrap();
        without_its_firewall(&slot);
        ip("-n internet addr add 10.1.2.3 dev lo");
        for server in ["10.1.2.3", SERVER[0]] {
            host.internet.run(|| serve(server)).unwrap();
        }
        assert_eq!(ask_from(&slot, "10.1.2.3").unwrap(), HOST[0]);
        assert!(ask_from(&slot, SERVER[0]).is_err(), "denied by the operator");
        slots.close().await;
    });
}

#[test]
fn a_guest_hears_at_once_that_there_is_no_way_for_ipv6() {
    on_a_host(async |host| {
        ip("-6 route del default");
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").unwrap().trim(), "0");
        let slot = slots.take().await.unwrap();
        let guest = Guest::start(&slot);
        host.internet.run(|| serve(SERVER[1])).unwrap();
        let error = guest.netns.run(|| ask(SERVER[1])).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable), "{error}");
        slots.close().await;
    });
}

#[test]
fn a_host_that_forwards_ipv6_goes_on_listening_to_its_own_router() {
    on_a_host(async |_| {
        let setting = |key: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{key}")).unwrap();
        assert_eq!(setting("eth0/accept_ra").trim(), "1");
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        assert_eq!(setting("eth0/accept_ra").trim(), "2");
        assert_eq!(setting("all/forwarding").trim(), "1");
        slots.close().await;
    });
}

#[test]
fn the_hosts_table_comes_back_when_its_firewall_is_loaded_anew() {
    on_a_host(async |_| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        run("nft", &["flush", "ruleset"]);
        until("the table is back", || run("nft", &["list", "tables"]).contains("table inet sp")).await;
        slots.close().await;
    });
}

#[test]
fn no_connection_of_a_slot_that_is_gone_is_left() {
    on_a_host(async |host| {
        let count = || run("sysctl", &["-n", "net.netfilter.nf_conntrack_count"]).trim().parse::<u32>().unwrap();
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let (one, other) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        for slot in [&one, &other] {
            without_its_firewall(slot);
            for server in SERVER {
                let socket = receive(&host, server);
                let any = if server.contains(':') { "::" } else { "0.0.0.0" };
                slot.netns().run(|| send(any, server, "hello")).unwrap();
                assert_eq!(text_of_next(&socket), "hello");
            }
        }
        assert_eq!(count(), 4);
        slots.destroy(one).await;
        until("only those of the other are left", || count() == 2).await;
        slots.destroy(other).await;
        until("none is left", || count() == 0).await;
        slots.close().await;
    });
}

#[test]
fn an_open_connection_outlives_a_restart_of_the_agent() {
    on_a_host(async |host| {
        let config = config(|_| {});
        let earlier = Slots::start(config.clone(), &[]).await.unwrap();
        let slot = earlier.take().await.unwrap();
        without_its_firewall(&slot);
        let server = receive(&host, SERVER[0]);
        let client = slot.netns().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        client.connect((SERVER[0], PORT)).unwrap();
        client.send(b"before").unwrap();
        let peer = server.recv_from(&mut [0; 64]).unwrap().1;

        Slots::start(config, &[slot.number()]).await.unwrap();

        client.send(b"after").unwrap();
        assert_eq!(server.recv_from(&mut [0; 64]).unwrap().1, peer, "the same port: the same connection");
        server.send_to(b"answer", peer).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(client.recv(&mut [0; 64]).unwrap(), 6);
    });
}
