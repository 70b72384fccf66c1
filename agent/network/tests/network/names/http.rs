//! HTTP through the proxy: every request's host decides where that request goes.

use std::sync::Arc;
use std::time::Duration;

use sandpiper_network::names::Limits;
use sandpiper_protocol::interval::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::world::{Recorder, SOON, World, change, in_a_world, policy, read_all};

/// Servers `api`, `web` and `evil`; the world's names lead to them.
fn servers(world: &World) {
    for (name, address) in [("api", "198.51.100.1"), ("web", "198.51.100.2"), ("evil", "198.51.100.9")] {
        world.internet.dns.addresses(&format!("{name}.example.test"), 300, &[address]);
        world.internet.http(&format!("{address}:80"), name);
    }
}

/// Everything that comes back for these bytes, until the connection is closed by the other side.
async fn exchange(world: &World, bytes: &str) -> String {
    let mut stream = world.connect("198.51.100.1:80").await;
    let _ = stream.write_all(bytes.as_bytes()).await;
    String::from_utf8_lossy(&read_all(&mut stream).await).into_owned()
}

/// Reads until `mark` has come.
async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !read.ends_with(mark.as_bytes()) {
            read.push(stream.read_u8().await?);
        }
        std::io::Result::Ok(())
    };
    timeout(SOON, reading).await.expect("an answer").unwrap_or_else(|error| panic!("{error}: {read:?}"));
    String::from_utf8(read).unwrap()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn allowed_hosts_are_reached_and_others_get_a_reason() {
    in_a_world(|world| async move {
        servers(&world);
        let (names, _) = world.sandbox(policy(false, &["api.example.test", "web.example.test:8080"], &[])).await;
        let get = |host: &str| format!("GET /x?y=1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");

        let answer = exchange(&world, &get("api.example.test")).await;
        assert!(answer.ends_with("[api] GET /x?y=1 host=api.example.test body=\n"), "{answer}");

        let answer = exchange(&world, &get("evil.example.test")).await;
        assert_eq!(status(&answer), "403", "{answer}");
        assert!(answer.contains("allow_internet_access false"), "{answer}");
        assert_eq!(status(&exchange(&world, &get("web.example.test")).await), "403", "allowed on another port");
        let (denied, total) = names.denied();
        assert_eq!((denied[1].protocol.as_str(), denied[1].host.as_str()), ("http", "evil.example.test"));
        assert_eq!((denied[1].port, total), (Some(80), 2));
    });
}

#[test]
fn a_host_leads_to_its_own_address_whatever_was_connected_to() {
    in_a_world(|world| async move {
        servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["web.example.test"], &[])).await;
        let answer = exchange(&world, "GET / HTTP/1.1\r\nHost: web.example.test\r\nConnection: close\r\n\r\n").await;
        assert!(answer.contains("[web] GET /"), "{answer}");
    });
}

#[test]
fn tricks_with_the_host_are_refused() {
    in_a_world(|world| async move {
        servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let table = [
            ("GET / HTTP/1.1\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost: api.example.test\r\nHost: evil.example.test\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost: api.example.test\r\nhost: api.example.test\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost: api.example.test@evil.example.test\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost: api.example.test, evil.example.test\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost: api.example.test\r\n evil.example.test\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost : evil.example.test\r\nHost: api.example.test\r\n\r\n", "400"),
            ("GET http://evil.example.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "400"),
            ("GET http://api.example.test@evil.example.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "400"),
            ("GET http://evil.example.test/ HTTP/1.1\r\nHost: evil.example.test\r\n\r\n", "403"),
            ("CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test:443\r\n\r\n", "400"),
            ("GET / HTTP/1.0\r\n\r\n", "403"),
            ("GET / HTTP/1.1\r\nHost: 198.51.100.1\r\n\r\n", "403"),
            ("GET / HTTP/1.1\r\nHost: 127.1\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "400"),
            ("POST / HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: xchunked\r\n\r\n", "400"),
            ("SSH-2.0-client\r\n\r\n", "400"),
        ];
        for (request, expected) in table {
            let answer = exchange(&world, request).await;
            assert_eq!(status(&answer), expected, "{request:?}: {answer}");
            assert!(!answer.contains("[evil]") && !answer.contains("[api]"), "{request:?}: {answer}");
        }
        let answer = exchange(&world, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert!(!answer.contains("[api]"), "{answer}");
        // As to a proxy, but to the host that it says: passed on as to a server.
        let proxied = "GET http://api.example.test/x HTTP/1.1\r\nHost: API.example.test\r\nConnection: close\r\n\r\n";
        let answer = exchange(&world, proxied).await;
        assert!(answer.contains("[api] GET /x host=API.example.test"), "{answer}");
    });
}

#[test]
fn each_request_of_a_connection_is_judged_by_its_own_host() {
    in_a_world(|world| async move {
        servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test", "web.example.test"], &[])).await;
        let mut stream = world.connect("198.51.100.1:80").await;
        for name in ["api", "web", "api", "api"] {
            let request = format!("GET /{name} HTTP/1.1\r\nHost: {name}.example.test\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = read_until(&mut stream, "body=\n").await;
            assert!(answer.contains(&format!("[{name}] GET /{name}")), "{answer}");
        }
        stream.write_all(b"GET / HTTP/1.1\r\nHost: evil.example.test\r\n\r\n").await.unwrap();
        let answer = String::from_utf8(read_all(&mut stream).await).unwrap();
        assert_eq!(status(&answer), "403");
        assert!(answer.to_lowercase().contains("connection: close"));
    });
}

#[test]
fn a_request_within_a_body_stays_a_body() {
    in_a_world(|world| async move {
        servers(&world);
        let (names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let hidden = "GET /hidden HTTP/1.1\r\nHost: evil.example.test\r\n\r\n";
        let head = "POST / HTTP/1.1\r\nHost: api.example.test\r\n";
        let end = "GET /end HTTP/1.1\r\nHost: api.example.test\r\nConnection: close\r\n\r\n";
        let length = format!("{head}Content-Length: {}\r\n\r\n{hidden}{end}", hidden.len());
        let chunks =
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{hidden}\r\n0\r\n\r\n{end}", hidden.len());
        for request in [length, chunks] {
            let answer = exchange(&world, &request).await;
            assert!(answer.contains(&format!("[api] POST / host=api.example.test body={hidden}")), "{answer}");
            assert!(answer.contains("[api] GET /end"), "{answer}");
        }
        assert_eq!(names.denied().1, 0);
        // Of two lengths the server gets the one that was understood, and nothing follows.
        let both =
            format!("{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{hidden}");
        let answer = exchange(&world, &both).await;
        assert!(answer.ends_with("[api] POST / host=api.example.test body=abc\n"), "{answer}");
        // And one behind a body that is shorter than it seems is seen for what it is.
        let shorter = format!("{head}Content-Length: 3\r\n\r\nabc{hidden}");
        let answer = exchange(&world, &shorter).await;
        assert!(answer.contains("body=abc\n") && answer.contains("403"), "{answer}");
        assert!(!answer.contains("[evil]"));
    });
}

#[test]
fn only_upgrades_that_cannot_name_another_host_are_passed_on() {
    in_a_world(|world| async move {
        servers(&world);
        let (names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let head = "GET / HTTP/1.1\r\nHost: api.example.test\r\nConnection: Upgrade, HTTP2-Settings\r\n";
        let mut other = world.connect("198.51.100.1:80").await;
        other.write_all(format!("{head}Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n").as_bytes()).await.unwrap();
        let answer = read_until(&mut other, "body=\n").await;
        assert_eq!(status(&answer), "200", "answered as if no upgrade had been offered");

        let mut stream = world.connect("198.51.100.1:80").await;
        stream.write_all(format!("{head}Upgrade: websocket\r\n\r\n").as_bytes()).await.unwrap();
        assert_eq!(status(&read_until(&mut stream, "\r\n\r\n").await), "101");
        stream.write_all(b"anything at all\n").await.unwrap();
        assert_eq!(read_until(&mut stream, "\n").await, "anything at all\n");

        change(&names, policy(false, &[], &[])).await;
        assert!(read_all(&mut stream).await.is_empty(), "cut with the policy");
    });
}

#[test]
fn where_only_some_names_are_denied_the_address_decides_about_nameless_requests() {
    in_a_world(|world| async move {
        servers(&world);
        let (_names, _) = world.sandbox(policy(true, &[], &["evil.example.test"])).await;
        let answer = exchange(&world, "GET / HTTP/1.0\r\n\r\n").await;
        assert!(answer.contains("[api] GET /"), "{answer}");
        let answer = exchange(&world, "GET / HTTP/1.1\r\nHost: 198.51.100.1\r\nConnection: close\r\n\r\n").await;
        assert!(answer.contains("[api] GET / host=198.51.100.1"), "{answer}");
        let answer = exchange(&world, "GET / HTTP/1.1\r\nHost: evil.example.test\r\n\r\n").await;
        assert_eq!(status(&answer), "403");
    });
}

#[test]
fn localhost_is_refused_although_everything_else_is_allowed() {
    in_a_world(|world| async move {
        servers(&world);
        world.internet.dns.addresses("app.localhost", 300, &["198.51.100.1"]);
        let (_names, _) = world.sandbox(policy(true, &["*.localhost"], &["evil.example.test"])).await;
        for host in ["localhost", "app.localhost:80"] {
            let answer = exchange(&world, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(status(&answer), "403", "{answer}");
            assert!(answer.contains("localhost, and every name below it"), "{answer}");
        }
    });
}

#[test]
fn a_change_of_the_policy_ends_open_connections_and_holds_for_the_next_request() {
    in_a_world(|world| async move {
        servers(&world);
        let (names, _) = world.sandbox(policy(false, &["api.example.test", "web.example.test"], &[])).await;
        let mut cut = world.connect("198.51.100.1:80").await;
        cut.write_all(b"GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await.unwrap();
        read_until(&mut cut, "body=\n").await;
        let mut kept = world.connect("198.51.100.1:80").await;
        kept.write_all(b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n").await.unwrap();
        read_until(&mut kept, "body=\n").await;

        change(&names, policy(false, &["api.example.test"], &[])).await;
        assert!(read_all(&mut cut).await.is_empty());
        kept.write_all(b"GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await.unwrap();
        assert_eq!(status(&String::from_utf8(read_all(&mut kept).await).unwrap()), "403");
    });
}

#[test]
fn without_common_memory_a_sandbox_has_eight_connections_and_the_others_wait() {
    in_a_world(|world| async move {
        servers(&world);
        let limits = Limits { memory: Arc::new(Semaphore::new(0)), ..Limits::default() };
        let policy = policy(false, &["api.example.test"], &[]);
        let (_names, _) = world.sandbox_within(policy, limits, Recorder::default());
        let request = b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n";
        // The listener of IPv6 keeps the eighth.
        let mut held = Vec::new();
        for _ in 0..7 {
            let mut stream = world.connect("198.51.100.1:80").await;
            stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            held.push(stream);
        }
        let mut next = world.connect("198.51.100.1:80").await;
        next.write_all(request).await.unwrap();
        let early = timeout(Duration::from_millis(300), next.readable()).await;
        assert!(early.is_err(), "it should wait");

        drop(held.pop());

        timeout(SOON, next.readable()).await.expect("it should be served").unwrap();
    });
}

#[test]
fn slow_clients_and_endless_heads_are_cut_off() {
    in_a_world(|world| async move {
        servers(&world);
        let limits = Limits { head: Duration::from_millis(300), ..Limits::default() };
        let (_names, _) = world.sandbox_within(policy(false, &["api.example.test"], &[]), limits, Recorder::default());
        let slow = exchange(&world, "GET / HTTP/1.1\r\nHost: api.exa").await;
        assert!(!slow.contains("[api]"), "{slow}");

        let filler = format!("X-Filler: {}\r\n", "x".repeat(1000));
        let huge = format!("GET / HTTP/1.1\r\nHost: api.example.test\r\n{}\r\n", filler.repeat(200));
        let answer = exchange(&world, &huge).await;
        assert!(!answer.contains("[api]"), "{answer}");
        let many = format!("GET / HTTP/1.1\r\nHost: api.example.test\r\n{}\r\n", "A: b\r\n".repeat(2000));
        assert!(!exchange(&world, &many).await.contains("[api]"));
    });
}

#[test]
fn a_server_that_is_away_is_a_bad_gateway() {
    in_a_world(|world| async move {
        world.internet.dns.addresses("away.example.test", 300, &["198.51.100.77"]);
        let (_names, _) = world.sandbox(policy(true, &[], &["evil.example.test"])).await;
        for host in ["away.example.test", "unknown.example.test"] {
            let answer = exchange(&world, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(status(&answer), "502", "{answer}");
        }
    });
}

#[test]
fn a_request_is_counted_as_the_server_gets_it_and_one_that_is_refused_is_not() {
    in_a_world(|world| async move {
        servers(&world);
        let (_names, _) = world.sandbox(policy(false, &["api.example.test"], &[])).await;
        let post = |host: &str| {
            let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 20000\r\n\r\n");
            head + &"x".repeat(20_000)
        };

        assert_eq!(status(&exchange(&world, &post("evil.example.test")).await), "403");
        assert_eq!(world.meter.read(), Bytes::default());

        let answer = exchange(&world, &post("api.example.test")).await;
        assert_eq!(status(&answer), "200", "{answer}");
        let Bytes { egress, ingress } = world.meter.read();
        assert!((20_000..20_200).contains(&egress) && ingress >= 20_000, "{egress} and {ingress}");
    });
}
