//! WebSockets and other upgrades.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::*;

/// A WebSocket server that sends back what it gets.
fn websocket_echo() -> Application {
    raw(|_, stream| async move {
        let mut socket = tokio_tungstenite::accept_async(stream).await.expect("a WebSocket request");
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() || message.is_binary() {
                let _ = socket.send(message).await;
            }
        }
    })
}

/// Agrees to `Upgrade: shout`, then gives every byte back in upper case until the client has ended, and says so.
fn shout() -> Application {
    raw(|_, mut stream| async move {
        let head = head(&mut stream).await;
        assert!(head.to_ascii_lowercase().contains("\r\nupgrade: shout\r\n"), "{head}");
        // The first bytes of the tunnel right behind the head.
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: shout\r\n\r\nHELLO ";
        stream.get_mut().write_all(agreed.as_bytes()).await.expect("writable");
        let mut said = String::new();
        stream.read_to_string(&mut said).await.expect("readable");
        stream.get_mut().write_all(format!("{} BYE", said.to_uppercase()).as_bytes()).await.expect("writable");
    })
}

#[tokio::test]
async fn websocket_messages_come_back() {
    let house = House::new(websocket_echo()).await;
    let stream = TcpStream::connect(house.address).await.expect("connected");
    let (mut socket, response) =
        soon(tokio_tungstenite::client_async(format!("ws://{PUBLIC}/socket?x=1"), stream)).await.expect("upgraded");
    assert_eq!(response.status(), 101);

    for length in [0, 10, 100_000] {
        let message = Message::binary(vec![7; length]);
        socket.send(message.clone()).await.expect("open");
        assert_eq!(soon(socket.next()).await.expect("not the end").expect("no error"), message);
    }
    assert_eq!(house.stats.tunnels.get(), 1);
    socket.close(None).await.expect("open");
    assert!(matches!(soon(socket.next()).await, Some(Ok(Message::Close(_)))));
}

/// Asks for a WebSocket in a stream of HTTP/2, once the listener has said that it may.
async fn extended_connect(house: &House, host: &str) -> Response<Incoming> {
    let mut sender = house.http2().await;
    let get = Request::get(format!("http://{PUBLIC}/")).body(Full::<Bytes>::default()).expect("valid");
    soon(sender.send_request(get)).await.expect("a response, behind the settings");
    let connect = Request::builder()
        .method("CONNECT")
        .uri(format!("http://{host}/socket"))
        .extension(hyper::ext::Protocol::from_static("websocket"))
        .body(Full::<Bytes>::default())
        .expect("valid");
    soon(sender.send_request(connect)).await.expect("a response")
}

#[tokio::test]
async fn websocket_messages_come_back_through_a_stream_of_http2() {
    let house = House::new(raw(|_, mut stream| async move {
        // Not every request here asks for a WebSocket.
        if stream.fill_buf().await.is_ok_and(|bytes| bytes.starts_with(b"GET / ")) {
            let _ = stream.get_mut().write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
            return;
        }
        let mut socket = tokio_tungstenite::accept_async(stream).await.expect("a WebSocket request");
        while let Some(Ok(message)) = socket.next().await {
            let _ = socket.send(message).await;
        }
    }))
    .await;
    let response = extended_connect(&house, PUBLIC).await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("sec-websocket-accept") && !response.headers().contains_key("upgrade"));

    let stream = TokioIo::new(soon(hyper::upgrade::on(response)).await.expect("a tunnel"));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    for length in [0, 10, 100_000] {
        let message = Message::binary(vec![7; length]);
        socket.send(message.clone()).await.expect("open");
        assert_eq!(soon(socket.next()).await.expect("not the end").expect("no error"), message);
    }
    assert_eq!(house.stats.tunnels.get(), 1);
}

#[tokio::test]
async fn a_guest_that_only_answers_makes_no_tunnel_of_a_stream() {
    let house = House::new(mirror()).await;
    assert_eq!(extended_connect(&house, PUBLIC).await.status(), 502, "200 would be taken for a WebSocket");
    assert_eq!(extended_connect(&house, PRIVATE).await.status(), 401);
}

#[tokio::test]
async fn a_private_websocket_takes_its_token_from_the_query() {
    let house = House::new(websocket_echo()).await;
    let stream = TcpStream::connect(house.address).await.expect("connected");
    let refused =
        soon(tokio_tungstenite::client_async(format!("ws://{PRIVATE}/"), stream)).await.expect_err("no token");
    assert!(matches!(refused, Error::Http(response) if response.status() == 401));

    let stream = TcpStream::connect(house.address).await.expect("connected");
    let url = format!("ws://{PRIVATE}/?access_token={}", house.token());
    let (mut socket, _) = soon(tokio_tungstenite::client_async(url, stream)).await.expect("upgraded");
    socket.send(Message::text("hi")).await.expect("open");
    assert_eq!(soon(socket.next()).await.expect("not the end").expect("no error"), Message::text("hi"));
}

#[tokio::test]
async fn one_direction_may_end_before_the_other() {
    let house = House::new(shout()).await;
    let request =
        format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\nquiet words");
    let mut stream = TcpStream::connect(house.address).await.expect("connected");
    stream.write_all(request.as_bytes()).await.expect("writable");
    // As a client should: it ends its direction once the other side has agreed.
    let mut answer = Vec::new();
    while !answer.ends_with(b"HELLO ") {
        assert!(soon(stream.read_buf(&mut answer)).await.expect("readable") > 0);
    }
    stream.shutdown().await.expect("open");

    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.expect("readable");

    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("\r\nupgrade: shout\r\n"), "{head}");
    assert_eq!(rest, "QUIET WORDS BYE");
}

#[tokio::test]
async fn a_guest_may_decline_to_upgrade() {
    let house = House::new(mirror()).await;
    let headers = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")];
    let (status, seen) = house.get(PUBLIC, "/", &headers).await;
    assert_eq!(status, 200);
    assert!(seen.contains("connection: Upgrade\n") && seen.contains("upgrade: websocket\n"), "{seen}");
    let (_, seen) = house.get(PUBLIC, "/", &[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")]).await;
    assert!(!seen.contains("upgrade"), "{seen}");
}

#[tokio::test]
async fn a_guest_may_not_upgrade_on_its_own() {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: shout\r\n\r\n";
    let house = House::new(scripted(answer, false)).await;
    let (status, _) = house.get(PUBLIC, "/", &[]).await;
    assert_eq!(status, 502);
}

#[tokio::test]
async fn a_tunnel_ends_when_the_guest_dies_or_the_agent_stops() {
    for stop in [false, true] {
        let (kill, killed) = tokio::sync::watch::channel(false);
        let house = House::new(raw(move |_, stream| {
            let mut killed = killed.clone();
            async move {
                let mut socket = tokio_tungstenite::accept_async(stream).await.expect("a WebSocket request");
                let _ = socket.send(Message::text("up")).await;
                let _ = killed.wait_for(|killed| *killed).await;
            }
        }))
        .await;
        let stream = TcpStream::connect(house.address).await.expect("connected");
        let (mut socket, _) =
            soon(tokio_tungstenite::client_async(format!("ws://{PUBLIC}/"), stream)).await.expect("upgraded");
        soon(socket.next()).await.expect("not the end").expect("up");

        if stop {
            house.shutdown.cancel();
        } else {
            kill.send_replace(true);
        }

        let end = soon(socket.next()).await;
        assert!(matches!(end, None | Some(Err(_))), "{end:?}");
    }
}

#[tokio::test]
async fn a_tunnel_keeps_its_place_among_the_connections() {
    let config = IngressConfig { max_connections: 1, ..Default::default() };
    let house = House::with(config, websocket_echo()).await;
    let stream = TcpStream::connect(house.address).await.expect("connected");
    let (mut socket, _) =
        soon(tokio_tungstenite::client_async(format!("ws://{PUBLIC}/"), stream)).await.expect("upgraded");
    socket.send(Message::text("hi")).await.expect("open");
    soon(socket.next()).await.expect("not the end").expect("an echo");

    let answer = house.raw("").await;

    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(house.stats.connections.get(), 1);
}
