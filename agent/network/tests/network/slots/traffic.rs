//! What went through a slot, as it is billed: to the byte, to nobody else, and whichever process there is.

use std::net::UdpSocket;
use std::sync::Arc;

use sandpiper_network::{Attachment, Config, Network, Slot, counters};
use sandpiper_protocol::agent::{self, NetworkPolicy};
use sandpiper_protocol::interval::{Bytes, Counters, Traffic};

use super::guest::Guest;
use super::host::{Host, PORT, SERVER, TIMEOUT, config, on_a_host, send, until};

/// What a datagram with this much in it comes to, with its headers.
const fn datagram(length: u64) -> u64 {
    20 + 8 + length
}

fn network(version: u64, deny_out: &[&str]) -> agent::Network {
    let deny_out = deny_out.iter().map(ToString::to_string).collect();
    agent::Network { version, policy: NetworkPolicy { deny_out, ..NetworkPolicy::default() } }
}

/// One slot, which is made when it is asked for.
fn one_slot() -> Config {
    let config = config(|config| config.max_slots = 1);
    Config { resolvers: vec!["198.51.100.2:53".parse().unwrap()], ..Arc::unwrap_or_clone(config) }
}

impl Host {
    /// A socket on the internet that gets datagrams.
    fn receiver(&self) -> UdpSocket {
        let socket = self.internet.run(|| UdpSocket::bind((SERVER[0], PORT))).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }
}

async fn of(attachment: &Attachment) -> Counters {
    attachment.counters().await.unwrap().unwrap()
}

async fn join(name: &str, attachment: &Attachment) -> Guest {
    Guest::join(name, attachment.tap().await.unwrap(), &attachment.guest_network())
}

/// Has the guest send a datagram, which arrives.
fn deliver(guest: &Guest, receiver: &UdpSocket, length: usize) {
    guest.netns.run(|| send("0.0.0.0", SERVER[0], &"x".repeat(length))).unwrap();
    assert_eq!(receiver.recv(&mut [0; 2000]).unwrap(), length);
}

#[test]
fn the_counters_outlive_the_process_and_go_with_the_slot() {
    on_a_host(async |host| {
        let mac = Slot::mac_of("sbx1");
        let (config, receiver) = (one_slot(), host.receiver());
        let first = Network::start(config.clone(), &[]).await.unwrap();
        let attachment = first.attach(mac, &network(1, &["203.0.113.99"])).await.unwrap();
        let guest = join("guest", &attachment).await;
        assert_eq!((of(&attachment).await, attachment.base()), (Counters::default(), Counters::default()));

        deliver(&guest, &receiver, 100);
        // Denied, and to the host itself, which is never reached.
        let _ = guest.netns.run(|| send("0.0.0.0", "203.0.113.99", "no"));
        deliver(&guest, &receiver, 1000);
        let forwarded = Bytes { egress: datagram(100) + datagram(1000), ingress: 0 };
        assert_eq!(of(&attachment).await, Counters { forwarded, proxied: Bytes::default() });

        // The process dies; its guest goes on.
        let slot = attachment.slot();
        drop((first, attachment));
        deliver(&guest, &receiver, 50);
        let forwarded = Bytes { egress: forwarded.egress + datagram(50), ingress: 0 };
        assert_eq!(counters(&config, slot, mac).unwrap().unwrap().forwarded, forwarded);
        assert_eq!(counters(&config, slot, Slot::mac_of("sbx0")).unwrap(), None, "it is another machine's");
        let next = Network::start(config.clone(), &[slot]).await.unwrap();
        let attachment = next.adopt(slot, mac, &network(1, &["203.0.113.99"])).await.unwrap();
        assert_eq!(of(&attachment).await.forwarded, forwarded);

        attachment.detach().await;
        until("the slot is gone", || counters(&config, slot, mac).is_err()).await;
        // The next sandbox has a slot of the same number, and nothing of what was counted.
        let attachment = next.attach(Slot::mac_of("sbx2"), &network(1, &[])).await.unwrap();
        assert_eq!((attachment.slot(), of(&attachment).await), (slot, Counters::default()));
        attachment.detach().await;
        next.close().await;
        assert_eq!(host.traces()[3], "", "no file is left");
    });
}

#[test]
fn what_was_counted_before_a_hand_over_is_not_the_next_ones() {
    on_a_host(async |host| {
        let receiver = host.receiver();
        let network_of_host = Network::start(one_slot(), &[]).await.unwrap();
        let parked = Slot::mac_of("parked");
        let mut attachment = network_of_host.attach(parked, &network(u64::MAX, &[])).await.unwrap();
        let guest = join("guest", &attachment).await;
        deliver(&guest, &receiver, 700);

        let mac = Slot::mac_of("sbx1");
        attachment.hand_over(mac, &network(1, &[])).await.unwrap();

        let base = attachment.base();
        assert_eq!((base.forwarded.egress, of(&attachment).await), (datagram(700), base));
        let text = mac.map(|byte| format!("{byte:02x}")).join(":");
        super::host::ip(&format!("-n guest link set eth0 address {text}"));
        deliver(&guest, &receiver, 30);
        let traffic = Traffic::begin(0, base).read(1, of(&attachment).await);
        assert_eq!(traffic.total, Bytes { egress: datagram(30), ingress: 0 });
        attachment.detach().await;
        network_of_host.close().await;
    });
}

#[test]
fn the_file_of_a_slot_that_is_gone_goes_when_the_next_process_starts() {
    on_a_host(async |_| {
        let config = one_slot();
        for name in ["sp-1", "other"] {
            std::fs::write(config.meters.join(name), [1; 16]).unwrap();
        }

        let network_of_host = Network::start(config.clone(), &[]).await.unwrap();
        let attachment = network_of_host.attach(Slot::mac_of("sbx1"), &network(1, &[])).await.unwrap();

        assert_eq!((attachment.slot(), of(&attachment).await.proxied), (1, Bytes::default()));
        assert!(config.meters.join("other").exists(), "what is no slot's is left alone");
        attachment.detach().await;
        network_of_host.close().await;
    });
}
