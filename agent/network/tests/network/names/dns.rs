//! What the forwarder answers, and what it pins.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hickory_resolver::proto::op::{Edns, Message, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_resolver::proto::rr::rdata::svcb::{IpHint, SvcParamKey, SvcParamValue};
use hickory_resolver::proto::rr::rdata::{A, HTTPS, SVCB};
use hickory_resolver::proto::rr::{DNSClass, Name, RData, RecordType};
use proptest::prelude::{Strategy as _, any};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use sandpiper_network::names::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::internet::dns_name;
use super::world::{Recorder, SOON, World, change, in_a_world, policy, until};

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(dns_name(name), kind)).set_edns(Edns::new().set_max_payload(1232).clone());
    message
}

async fn ask(world: &World, query: &Message) -> Message {
    ask_on(&world.dns_socket(), query).await
}

/// As resolvers do, asks again what was not answered: a query may be dropped.
async fn ask_on(socket: &UdpSocket, query: &Message) -> Message {
    let mut buffer = [0; 4096];
    for _ in 0..10 {
        socket.send(&query.to_vec().unwrap()).await.unwrap();
        if let Ok(length) = timeout(SOON / 10, socket.recv(&mut buffer)).await {
            let reply = Message::from_vec(&buffer[..length.unwrap()]).unwrap();
            assert_eq!(reply.id, query.id);
            return reply;
        }
    }
    panic!("no answer to {query}");
}

async fn ask_by_tcp(world: &World, query: &Message) -> Message {
    let mut stream = world.connect("100.64.0.1:53").await;
    let bytes = query.to_vec().unwrap();
    stream.write_u16(bytes.len().try_into().unwrap()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let length = timeout(SOON, stream.read_u16()).await.expect("an answer").unwrap();
    let mut reply = vec![0; length.into()];
    stream.read_exact(&mut reply).await.unwrap();
    Message::from_vec(&reply).unwrap()
}

fn addresses(reply: &Message) -> Vec<String> {
    let mut addresses: Vec<_> = reply
        .answers
        .iter()
        .filter_map(|record| record.data.ip_addr())
        .map(|address: IpAddr| address.to_string())
        .collect();
    addresses.sort();
    addresses
}

/// The addresses of a name of either kind, or how that went otherwise.
pub(crate) async fn resolve(world: &World, name: &str) -> Result<Vec<String>, ResponseCode> {
    let mut all = Vec::new();
    for kind in [RecordType::A, RecordType::AAAA] {
        let reply = ask(world, &question(name, kind)).await;
        match reply.response_code {
            ResponseCode::NoError => all.extend(addresses(&reply)),
            code => return Err(code),
        }
    }
    Ok(all)
}

fn is_blocked(reply: &Message) -> bool {
    let option = reply.edns.as_ref().and_then(|edns| edns.option(EdnsCode::Unknown(15)));
    matches!(option, Some(EdnsOption::Unknown(_, data)) if data.starts_with(&[0, 15]))
}

#[test]
fn only_allowed_names_are_resolved_and_their_addresses_pinned() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1", "2001:db8::1"]);
        world.internet.dns.addresses("deep.down.example.test", 300, &["198.51.100.2"]);
        world.internet.dns.addresses("other.test", 300, &["198.51.100.3"]);
        let (names, pins) = world.sandbox(policy(false, &["api.example.test:443", "*.down.example.test"], &[])).await;

        assert_eq!(resolve(&world, "API.example.test").await.unwrap(), ["198.51.100.1", "2001:db8::1"]);
        assert_eq!(resolve(&world, "deep.down.example.test").await.unwrap(), ["198.51.100.2"]);
        assert_eq!(pins.told(), ["AllowOut 198.51.100.1 443", "AllowOut 198.51.100.2", "AllowOut 2001:db8::1 443"]);

        let asked = world.internet.dns.asked();
        for name in ["other.test", "down.example.test", "example.test", "api.example.test.other.test"] {
            let reply = ask(&world, &question(name, RecordType::A)).await;
            assert_eq!((reply.response_code, is_blocked(&reply)), (ResponseCode::NXDomain, true), "{name}");
        }
        assert_eq!(world.internet.dns.asked(), asked, "nobody else hears of denied names");
        let (denied, total) = names.denied();
        assert_eq!(total, 4);
        assert_eq!((denied[0].protocol.as_str(), denied[0].host.as_str()), ("dns", "api.example.test.other.test"));
        names.close().await;
    });
}

#[test]
fn localhost_is_asked_of_nobody_whatever_the_policy_says() {
    in_a_world(|world| async move {
        for name in ["localhost", "app.localhost"] {
            world.internet.dns.addresses(name, 300, &["198.51.100.1"]);
        }
        let (names, pins) = world.sandbox(policy(true, &["localhost", "*.localhost"], &[])).await;
        let asked = world.internet.dns.asked();
        for name in ["localhost", "LocalHost", "app.localhost"] {
            let reply = ask(&world, &question(name, RecordType::A)).await;
            assert_eq!((reply.response_code, is_blocked(&reply)), (ResponseCode::NXDomain, true), "{name}");
        }
        assert_eq!(world.internet.dns.asked(), asked);
        assert!(pins.told().is_empty());
        assert_eq!(names.denied().0[0].rule, "localhost, and every name below it, is the sandbox itself");
    });
}

#[test]
fn denied_names_are_unknown_unless_on_some_ports_only() {
    in_a_world(|world| async move {
        for name in ["evil.example.test", "www.evil.example.test", "half.example.test", "good.example.test"] {
            world.internet.dns.addresses(name, 300, &["198.51.100.1"]);
        }
        let entries = ["evil.example.test", "*.evil.example.test", "half.example.test:25"];
        let (_names, pins) = world.sandbox(policy(true, &[], &entries)).await;

        assert_eq!(resolve(&world, "evil.example.test").await, Err(ResponseCode::NXDomain));
        assert_eq!(resolve(&world, "www.evil.example.test").await, Err(ResponseCode::NXDomain));
        assert_eq!(resolve(&world, "good.example.test").await.unwrap(), ["198.51.100.1"]);
        assert!(pins.told().is_empty(), "no rule names it");
        assert_eq!(resolve(&world, "half.example.test").await.unwrap(), ["198.51.100.1"]);
        assert_eq!(pins.told(), ["DenyOut 198.51.100.1 25"]);
    });
}

#[test]
fn answers_that_point_into_protected_ranges_are_dropped() {
    in_a_world(|world| async move {
        let table: [(&[&str], &[&str]); 9] = [
            (&["127.0.0.1"], &[]),
            (&["10.1.2.3"], &[]),
            (&["169.254.169.254"], &[]),
            (&["100.65.0.1"], &[]),
            (&["::1"], &[]),
            (&["::ffff:127.0.0.1"], &[]),
            (&["64:ff9b::7f00:1"], &[]),
            (&["fd5a:5a::1"], &[]),
            (&["192.168.0.1", "198.51.100.1", "fe80::1", "2001:db8::1"], &["198.51.100.1", "2001:db8::1"]),
        ];
        let (names, pins) = world.sandbox(policy(false, &["*.example.test"], &[])).await;
        for (number, (real, told)) in table.iter().enumerate() {
            let name = format!("r{number}.example.test");
            world.internet.dns.addresses(&name, 300, real);
            assert_eq!(resolve(&world, &name).await.unwrap(), *told, "{real:?}");
        }
        let reply = ask(&world, &question("r0.example.test", RecordType::A)).await;
        assert!(is_blocked(&reply));
        assert_eq!(pins.told(), ["AllowOut 198.51.100.1", "AllowOut 2001:db8::1"]);
        let (denied, _) = names.denied();
        assert!(denied[0].rule.contains("127.0.0.0/8"), "{denied:?}");
    });
}

#[test]
fn the_questions_name_decides_about_aliases() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("denied.test", 300, &["198.51.100.1"]);
        world.internet.dns.addresses("inner.test", 300, &["10.0.0.1"]);
        world.internet.dns.alias("api.example.test", "denied.test");
        world.internet.dns.alias("rebound.example.test", "inner.test");
        let (_names, pins) = world.sandbox(policy(false, &["*.example.test"], &[])).await;

        let reply = ask(&world, &question("api.example.test", RecordType::A)).await;
        assert_eq!(addresses(&reply), ["198.51.100.1"]);
        assert_eq!(reply.answers[0].record_type(), RecordType::CNAME);
        assert_eq!(pins.told(), ["AllowOut 198.51.100.1"]);
        assert_eq!(resolve(&world, "denied.test").await, Err(ResponseCode::NXDomain));
        assert!(resolve(&world, "rebound.example.test").await.unwrap().is_empty());
    });
}

#[test]
fn a_short_lived_answer_is_pinned_for_longer_than_it_lives() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("zero.example.test", 0, &["198.51.100.1"]);
        world.internet.dns.addresses("long.example.test", 1_000_000, &["198.51.100.2"]);
        let (_names, pins) = world.sandbox(policy(false, &["*.example.test"], &[])).await;

        let reply = ask(&world, &question("zero.example.test", RecordType::A)).await;
        assert_eq!(reply.answers[0].ttl, 0);
        let reply = ask(&world, &question("long.example.test", RecordType::A)).await;
        assert_eq!(reply.answers[0].ttl, 3600);
        let lives: Vec<_> = pins.pins.lock().unwrap().iter().map(|pin| pin.life.as_secs()).collect();
        assert_eq!(lives, [90, 3630]);
    });
}

#[test]
fn an_answer_that_cannot_be_pinned_is_not_given() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1"]);
        let broken = Recorder { broken: true, ..Recorder::default() };
        let (_names, _) = world.sandbox_within(policy(false, &["api.example.test"], &[]), Limits::default(), broken);
        assert_eq!(resolve(&world, "api.example.test").await, Err(ResponseCode::ServFail));
    });
}

/// The runtime has two threads for all of it.
#[test]
fn firewalls_that_take_their_time_hold_up_nobody_else() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1"]);
        let policy = || policy(false, &["api.example.test"], &[]);
        let slow: [Arc<Recorder>; 3] = std::array::from_fn(|_| Arc::default());
        let query = question("api.example.test", RecordType::A);
        let held = slow.each_ref().map(|recorder| recorder.pins.lock().unwrap());
        let mut waiting = Vec::new();
        for (number, recorder) in slow.iter().enumerate() {
            let address = format!("127.0.0.{}", 10 + number);
            let (names, socket) = world.neighbour_at(&address, policy(), Arc::clone(recorder)).await;
            socket.send(&query.to_vec().unwrap()).await.unwrap();
            waiting.push((names, socket));
        }
        until(|| slow.iter().all(|recorder| recorder.asked.load(Ordering::Relaxed) > 0)).await;

        let (_names, quick) = world.neighbour(policy()).await;
        assert_eq!(addresses(&ask_on(&quick, &query).await), ["198.51.100.1"]);

        drop(held);
        for (_names, socket) in &waiting {
            let reply = ask_on(socket, &query).await;
            assert_eq!(addresses(&reply), ["198.51.100.1"]);
        }
    });
}

#[test]
fn a_new_policy_gets_the_pins_of_what_the_guest_knows() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1"]);
        world.internet.dns.addresses("web.example.test", 300, &["198.51.100.2"]);
        let (names, pins) = world.sandbox(policy(true, &[], &[])).await;
        resolve(&world, "api.example.test").await.unwrap();
        resolve(&world, "web.example.test").await.unwrap();
        assert!(pins.told().is_empty());

        let given = change(&names, policy(false, &["api.example.test:443"], &[])).await;
        assert_eq!(given, ["AllowOut 198.51.100.1 443"]);
        assert_eq!(resolve(&world, "web.example.test").await, Err(ResponseCode::NXDomain));

        let failed = names.change(policy(true, &[], &[]), |_, _| Err(std::io::Error::other("not now"))).await;
        assert!(failed.is_err());
        assert_eq!(resolve(&world, "web.example.test").await, Err(ResponseCode::NXDomain));
    });
}

#[test]
fn an_answer_is_judged_by_the_policy_that_holds_when_it_is_given() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("held.example.test", 300, &["198.51.100.1"]);
        let (names, pins) = world.sandbox(policy(false, &["held.example.test"], &[])).await;
        let socket = world.dns_socket();
        let query = question("held.example.test", RecordType::A);
        socket.send(&query.to_vec().unwrap()).await.unwrap();
        until(|| world.internet.dns.asked() > 0).await;

        change(&names, policy(false, &["other.example.test"], &[])).await;
        world.internet.dns.release();
        let mut buffer = [0; 4096];
        let length = timeout(SOON, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!((reply.response_code, reply.answers.len()), (ResponseCode::NXDomain, 0));
        assert!(pins.told().is_empty());
    });
}

#[test]
fn long_answers_are_had_by_tcp() {
    in_a_world(|world| async move {
        let text = "x".repeat(5000);
        world.internet.dns.text("long.example.test", &text);
        let (_names, _) = world.sandbox(policy(true, &[], &[])).await;
        let query = question("long.example.test", RecordType::TXT);
        let cut = ask(&world, &query).await;
        assert!(cut.truncation && cut.answers.is_empty());
        let whole = ask_by_tcp(&world, &query).await;
        assert!(!whole.truncation);
        assert!(whole.to_vec().unwrap().len() > text.len());
    });
}

#[test]
fn a_service_record_is_not_a_way_around_names() {
    in_a_world(|world| async move {
        let hints = |addresses: &[[u8; 4]]| {
            let hints = addresses.iter().map(|address| A((*address).into())).collect();
            let params = vec![(SvcParamKey::Ipv4Hint, SvcParamValue::Ipv4Hint(IpHint(hints)))];
            RData::HTTPS(HTTPS(SVCB::new(1, Name::root(), params)))
        };
        world.internet.dns.record("api.example.test", hints(&[[198, 51, 100, 1]]));
        world.internet.dns.record("bad.example.test", hints(&[[198, 51, 100, 1], [10, 0, 0, 1]]));
        let (names, _) = world.sandbox(policy(true, &[], &[])).await;
        let count = async |name| ask(&world, &question(name, RecordType::HTTPS)).await.answers.len();
        assert_eq!(count("api.example.test").await, 1);
        assert_eq!(count("bad.example.test").await, 0);
        change(&names, policy(false, &["api.example.test"], &[])).await;
        assert_eq!(count("api.example.test").await, 0);
        change(&names, policy(true, &[], &["evil.example.test"])).await;
        assert_eq!(count("api.example.test").await, 0);
    });
}

#[test]
fn questions_that_are_not_for_a_forwarder_are_turned_down() {
    in_a_world(|world| async move {
        let (names, _) = world.sandbox(policy(true, &[], &[])).await;
        let table = [
            ("1.0.0.10.in-addr.arpa", RecordType::PTR, ResponseCode::NXDomain),
            ("example.test", RecordType::AXFR, ResponseCode::Refused),
            ("", RecordType::NS, ResponseCode::Refused),
            ("example.test", RecordType::ANY, ResponseCode::NoError),
        ];
        let asked = world.internet.dns.asked();
        for (name, kind, code) in table {
            let mut query = question("x", kind);
            query.queries[0].set_name(Name::from_ascii(format!("{name}.")).unwrap());
            let reply = ask(&world, &query).await;
            assert_eq!(reply.response_code, code, "{name} {kind}");
            assert_eq!(reply.queries, query.queries);
        }
        let mut chaos = question("version.bind", RecordType::TXT);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(ask(&world, &chaos).await.response_code, ResponseCode::Refused);
        assert_eq!(world.internet.dns.asked(), asked);
        assert_eq!(names.denied().1, 0, "the policy denied nothing of this");
        assert_eq!(resolve(&world, "unknown.example.test").await, Err(ResponseCode::NXDomain));
    });
}

#[test]
fn garbage_does_not_keep_anyone_from_asking() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1"]);
        let (_names, _) = world.sandbox(policy(true, &[], &[])).await;
        let socket = world.dns_socket();
        let mut runner = TestRunner::deterministic();
        let garbage = proptest::collection::vec(any::<u8>(), 0..600).boxed();
        for _ in 0..300 {
            let bytes = garbage.new_tree(&mut runner).unwrap().current();
            let _ = socket.send(&bytes).await;
        }
        let mut stream = world.connect("100.64.0.1:53").await;
        stream.write_all(&[0xff; 2000]).await.unwrap();
        drop(stream);
        assert_eq!(resolve(&world, "api.example.test").await.unwrap(), ["198.51.100.1"]);
    });
}

#[test]
fn one_sandboxs_flood_is_dropped_and_another_is_served() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1"]);
        let limits =
            Limits { queries_per_second: NonZeroU32::new(40).unwrap(), queries: 8, lookups: 4, ..Limits::default() };
        let (_names, _) = world.sandbox_within(policy(true, &[], &[]), limits, Recorder::default());
        let (_others, neighbour) = world.neighbour(policy(true, &[], &[])).await;
        let socket = world.dns_socket();
        for number in 0..2000 {
            let query = question(&format!("silent{number}.example.test"), RecordType::A);
            let _ = socket.send(&query.to_vec().unwrap()).await;
        }
        // All that got through waits for a server that never answers.
        let reply = ask_on(&neighbour, &question("api.example.test", RecordType::A)).await;
        assert_eq!(addresses(&reply), ["198.51.100.1"]);
        assert!(world.internet.dns.asked() < 100, "{}", world.internet.dns.asked());
    });
}
