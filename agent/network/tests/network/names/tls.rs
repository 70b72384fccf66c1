//! TLS through the proxy: the server name decides where a connection goes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sandpiper_network::names::Limits;
use sandpiper_protocol::interval::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::internet::provider;
use super::world::{Recorder, SOON, World, change, in_a_world, policy, read_all};

type Greeted = BufReader<TlsStream<TcpStream>>;

fn config(roots: &[CertificateDer<'static>], sni: bool) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    config.enable_sni = sni;
    Arc::new(config)
}

/// Shakes hands as a client of `name`, with whoever is there.
async fn shake(stream: TcpStream, config: Arc<ClientConfig>, name: &'static str) -> io::Result<(String, Greeted)> {
    let name = ServerName::try_from(name).unwrap();
    let greet = async {
        let mut stream = BufReader::new(TlsConnector::from(config).connect(name, stream).await?);
        let mut server = String::new();
        stream.read_line(&mut server).await?;
        Ok((server.trim().to_owned(), stream))
    };
    timeout(SOON, greet).await.expect("a server, or a refusal")
}

/// Who answers a guest that connects to `to` and names `name`.
async fn server(world: &World, root: &CertificateDer<'static>, to: &str, name: &'static str) -> io::Result<String> {
    let stream = world.connect(to).await;
    shake(stream, config(std::slice::from_ref(root), true), name).await.map(|(server, _)| server)
}

/// Servers `api` and `evil` with certificates of their own; the world's names lead to them.
fn servers(world: &World) -> (CertificateDer<'static>, CertificateDer<'static>) {
    let dns = &world.internet.dns;
    dns.addresses("api.example.test", 300, &["198.51.100.1", "2001:db8::1"]);
    dns.addresses("evil.example.test", 300, &["198.51.100.9"]);
    let names = ["api.example.test", "evil.example.test", "other.example.test"];
    world.internet.tls("[2001:db8::1]:443", "api6", &names);
    (world.internet.tls("198.51.100.1:443", "api", &names), world.internet.tls("198.51.100.9:443", "evil", &names))
}

#[test]
fn an_allowed_name_is_reached_and_the_handshake_is_the_servers() {
    in_a_world(|world| async move {
        let (api, _) = servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let stream = world.connect("198.51.100.1:443").await;
        let (server, mut stream) = shake(stream, config(&[api], true), "api.example.test").await.unwrap();
        assert_eq!(server, "api");

        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let (mut reader, mut writer) = tokio::io::split(stream.get_mut());
        let mut received = vec![0; sent.len()];
        let write = async {
            writer.write_all(&sent).await?;
            writer.flush().await
        };
        tokio::try_join!(write, reader.read_exact(&mut received)).unwrap();
        assert!(sent == received);
    });
}

#[test]
fn an_allowed_name_leads_to_its_own_address_whatever_was_connected_to() {
    in_a_world(|world| async move {
        let (api, evil) = servers(&world);
        let (names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        assert_eq!(server(&world, &api, "198.51.100.9:443", "api.example.test").await.unwrap(), "api");
        let error = server(&world, &evil, "198.51.100.9:443", "api.example.test").await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");

        let error = server(&world, &evil, "198.51.100.1:443", "evil.example.test").await.unwrap_err();
        assert!(error.to_string().contains("AccessDenied"), "{error}");
        let (denied, total) = names.denied();
        assert_eq!((denied[0].protocol.as_str(), denied[0].host.as_str()), ("tls", "evil.example.test"));
        assert_eq!((denied[0].port, total), (Some(443), 1));
    });
}

#[test]
fn localhost_is_refused_although_everything_else_is_allowed() {
    in_a_world(|world| async move {
        let (api, _) = servers(&world);
        world.internet.dns.addresses("app.localhost", 300, &["198.51.100.1"]);
        let (_names, _) = world.sandbox(policy(true, &["*.localhost"], &["evil.example.test"])).await;
        for name in ["localhost", "app.localhost"] {
            let error = server(&world, &api, "198.51.100.1:443", name).await.unwrap_err();
            assert!(error.to_string().contains("AccessDenied"), "{name}: {error}");
        }
    });
}

#[test]
fn the_guest_keeps_its_choice_among_a_names_addresses() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.1", "198.51.100.2"]);
        let one = world.internet.tls("198.51.100.1:443", "one", &["api.example.test"]);
        let two = world.internet.tls("198.51.100.2:443", "two", &["api.example.test"]);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        assert_eq!(server(&world, &two, "198.51.100.2:443", "api.example.test").await.unwrap(), "two");
        assert_eq!(server(&world, &one, "198.51.100.1:443", "api.example.test").await.unwrap(), "one");
    });
}

#[test]
fn version_six_passes_as_well_and_dead_addresses_are_passed_over() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("api.example.test", 300, &["198.51.100.7", "2001:db8::1"]);
        let api = world.internet.tls("[2001:db8::1]:443", "api6", &["api.example.test"]);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        assert_eq!(server(&world, &api, "[2001:db8::1]:443", "api.example.test").await.unwrap(), "api6");
        assert_eq!(server(&world, &api, "198.51.100.7:443", "api.example.test").await.unwrap(), "api6");
    });
}

#[test]
fn a_name_that_leads_to_the_platform_or_the_host_leads_nowhere() {
    in_a_world(|world| async move {
        let host = tokio::net::TcpListener::bind("0.0.0.0:443").await.unwrap();
        let (names, _) = world.sandbox(policy(true, &[], &["evil.example.test"])).await;
        for address in ["127.0.0.1", "203.0.113.1", "10.0.0.1"] {
            world.internet.dns.addresses("api.example.test", 0, &[address]);
            let stream = world.connect("198.51.100.1:443").await;
            assert!(shake(stream, config(&[], true), "api.example.test").await.is_err(), "{address}");
        }
        // The host's own address is not in a range that a policy knows of.
        assert_eq!(names.denied().1, 2);
        assert!(timeout(Duration::ZERO, host.accept()).await.is_err());
    });
}

#[test]
fn without_a_name_the_address_decides() {
    in_a_world(|world| async move {
        let (api, _) = servers(&world);
        let nameless = || async {
            let stream = world.connect("198.51.100.1:443").await;
            shake(stream, config(std::slice::from_ref(&api), false), "api.example.test").await.map(|(server, _)| server)
        };
        let (names, _) = world.sandbox(policy(true, &[], &["evil.example.test"])).await;
        assert_eq!(nameless().await.unwrap(), "api");
        change(&names, policy(false, &["api.example.test"], &[])).await;
        assert!(nameless().await.unwrap_err().to_string().contains("AccessDenied"));
        assert_eq!(names.denied().0[0].host, "198.51.100.1");
    });
}

#[test]
fn a_name_that_is_denied_on_a_port_is_not_reached_without_saying_it() {
    in_a_world(|world| async move {
        let (_, evil) = servers(&world);
        let (names, _) = world.sandbox(policy(true, &[], &["evil.example.test:443"])).await;
        let nameless = || async {
            let stream = world.connect("198.51.100.9:443").await;
            shake(stream, config(std::slice::from_ref(&evil), false), "evil.example.test")
                .await
                .map(|(server, _)| server)
        };
        assert_eq!(nameless().await.unwrap(), "evil", "nobody knows whose address that is");
        super::dns::resolve(&world, "evil.example.test").await.unwrap();
        assert!(nameless().await.unwrap_err().to_string().contains("AccessDenied"));
        assert!(names.denied().0[0].rule.contains("evil.example.test:443"));
    });
}

#[test]
fn a_hello_may_come_in_pieces() {
    in_a_world(|world| async move {
        servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let name = ServerName::try_from("api.example.test").unwrap();
        let mut client = ClientConnection::new(config(&[], true), name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        let records: Vec<u8> = hello[5..]
            .chunks(40)
            .flat_map(|piece| {
                let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
                [&[22, 3, 1, length[0], length[1]], piece].concat()
            })
            .collect();
        for bytes in [hello, records] {
            let mut stream = world.connect("198.51.100.1:443").await;
            stream.set_nodelay(true).unwrap();
            for piece in bytes.chunks(7) {
                stream.write_all(piece).await.unwrap();
                stream.flush().await.unwrap();
            }
            let mut first = [0; 6];
            timeout(SOON, stream.read_exact(&mut first)).await.expect("a server's hello").unwrap();
            assert_eq!((first[0], first[5]), (22, 2), "a handshake record with a server hello");
        }
    });
}

#[test]
fn hellos_that_never_end_or_are_none_are_refused() {
    in_a_world(|world| async move {
        let limits = Limits { head: Duration::from_millis(300), ..Limits::default() };
        let policy = policy(true, &[], &["evil.example.test"]);
        let (_names, _) = world.sandbox_within(policy, limits, Recorder::default());
        let record = |length: u16| [vec![22, 3, 1], length.to_be_bytes().to_vec()].concat();
        let endless = [record(16384), vec![1, 0, 0xff, 0xff], vec![0; 16380], record(16384), vec![0; 16384]].concat();
        let table: [(&str, Vec<u8>); 5] = [
            ("nothing", Vec::new()),
            ("half a record", record(100)),
            ("garbage", [record(5), vec![0xee; 5]].concat()),
            ("too much", endless),
            ("an alert", vec![21, 3, 3, 0, 2, 1, 0]),
        ];
        for (what, bytes) in table {
            let mut stream = world.connect("198.51.100.1:443").await;
            let _ = stream.write_all(&bytes).await;
            assert!(read_all(&mut stream).await.len() < 200, "{what}");
        }
    });
}

#[test]
fn a_change_of_the_policy_cuts_what_it_forbids_and_nothing_else() {
    in_a_world(|world| async move {
        let (api, evil) = servers(&world);
        let both = config(&[api, evil], true);
        let (names, _) = world.sandbox(policy(false, &["api.example.test", "evil.example.test"], &[])).await;
        let open = |to: &'static str, name| {
            let (world, both) = (&world, both.clone());
            async move { shake(world.connect(to).await, both, name).await.unwrap().1 }
        };
        let mut kept = open("198.51.100.1:443", "api.example.test").await;
        let mut cut = open("198.51.100.9:443", "evil.example.test").await;

        change(&names, policy(false, &["api.example.test"], &[])).await;
        let mut buffer = [0; 4];
        let ended = timeout(SOON, cut.read(&mut buffer)).await.expect("the connection should be cut");
        assert!(ended.is_err(), "an error, not an end");
        kept.write_all(b"ping").await.unwrap();
        timeout(SOON, kept.read_exact(&mut buffer)).await.expect("an echo").unwrap();
        assert_eq!(&buffer, b"ping");
        assert_eq!(names.denied().0[0].host, "evil.example.test");

        // Its address, too, though the name is still allowed.
        change(&names, policy(true, &[], &["198.51.100.0/24"])).await;
        assert!(timeout(SOON, kept.read(&mut buffer)).await.expect("the connection should be cut").is_err());
    });
}

#[test]
fn idle_connections_and_those_beyond_the_limit_do_not_stay() {
    in_a_world(|world| async move {
        let (api, _) = servers(&world);
        let limits = Limits { idle: Duration::from_millis(300), connections: 2, ..Limits::default() };
        let policy = policy(false, &["api.example.test"], &[]);
        let (_names, _) = world.sandbox_within(policy, limits, Recorder::default());
        let first = world.connect("198.51.100.1:443").await;
        let (_, mut first) = shake(first, config(std::slice::from_ref(&api), true), "api.example.test").await.unwrap();
        let ended = timeout(SOON, first.read(&mut [0; 4])).await.expect("an idle connection should be closed");
        assert!(ended.is_err());
        for _ in 0..5 {
            // Each has to wait for one of those before it.
            assert_eq!(server(&world, &api, "198.51.100.1:443", "api.example.test").await.unwrap(), "api");
        }
    });
}

#[test]
fn all_connections_end_with_the_sandbox() {
    in_a_world(|world| async move {
        let (api, _) = servers(&world);
        let (names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let stream = world.connect("198.51.100.1:443").await;
        let (_, mut stream) = shake(stream, config(&[api], true), "api.example.test").await.unwrap();
        timeout(SOON, names.close()).await.expect("nothing to wait for");
        let ended = timeout(SOON, stream.read(&mut [0; 4])).await.expect("the connection should be closed");
        assert!(!matches!(ended, Ok(1..)));
        // The ports are free for the next one.
        let (_names, _) = world.sandbox(policy(true, &[], &[])).await;
    });
}

#[test]
fn what_is_passed_on_is_counted_each_way_and_nothing_of_what_is_refused() {
    in_a_world(|world| async move {
        let (api, evil) = servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        server(&world, &evil, "198.51.100.1:443", "evil.example.test").await.unwrap_err();
        assert_eq!(world.meter.read(), Bytes::default(), "a name that is not allowed");

        let stream = world.connect("198.51.100.1:443").await;
        let (_, mut stream) = shake(stream, config(&[api], true), "api.example.test").await.unwrap();
        let greeted = world.meter.read();
        assert!(greeted.egress > 100 && greeted.ingress > 500, "the handshake: {greeted:?}");
        let sent = vec![7; 500_000];
        let (mut reader, mut writer) = tokio::io::split(stream.get_mut());
        let mut received = vec![0; sent.len()];
        let write = async {
            writer.write_all(&sent).await?;
            writer.flush().await
        };
        tokio::try_join!(write, reader.read_exact(&mut received)).unwrap();

        let Bytes { egress, ingress } = world.meter.read();
        // With the records around it.
        for passed in [egress - greeted.egress, ingress - greeted.ingress] {
            assert!((500_000..525_000).contains(&passed), "{passed}");
        }
    });
}
