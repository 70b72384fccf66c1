//! What happens to tunnels and streams whose request would be refused by now.

use super::*;
use crate::session::SessionError;

/// Agrees to `Upgrade: echo`, and gives every byte back.
fn echo() -> Application {
    raw(|_, mut stream| async move {
        head(&mut stream).await;
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        stream.get_mut().write_all(agreed.as_bytes()).await.expect("writable");
        let (mut reader, mut writer) = tokio::io::split(stream);
        // Ends with an error when the proxy closes.
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
}

async fn tunnel(house: &House, host: &str, token: Option<&str>) -> TcpStream {
    let token = token.map(|token| format!("X-Access-Token: {token}\r\n")).unwrap_or_default();
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{token}Connection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    let mut stream = TcpStream::connect(house.address).await.expect("connected");
    stream.write_all(request.as_bytes()).await.expect("writable");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        assert!(soon(stream.read_buf(&mut answer)).await.expect("readable") > 0, "{answer:?}");
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    assert_echoes(&mut stream).await;
    stream
}

async fn assert_echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").await.expect("writable");
    let mut back = [0; 4];
    soon(stream.read_exact(&mut back)).await.expect("open");
    assert_eq!(&back, b"ping");
}

async fn assert_ends(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A clean end or a reset: the client may have been writing.
    let _ = soon(stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty(), "{rest:?}");
}

/// A token that is good for two seconds at most.
fn brief_token(house: &House) -> String {
    let sessions = Sessions::open(&house.folder.path().join("key"), Duration::from_secs(2)).expect("the same key");
    sessions.mint(SANDBOX, None).0
}

#[tokio::test]
async fn a_tunnel_ends_when_its_port_is_closed_or_made_private_or_the_team_disabled_or_the_sandbox_is_gone() {
    let changes: [fn(&House); 5] = [
        |house| house.change(|target| target.team_disabled = true),
        |house| house.change(|target| target.exposed_ports.retain(|port| port.port != 8000)),
        |house| house.change(|target| target.exposed_ports[0].public = false),
        |house| house.change(|target| target.allow_public_traffic = false),
        |house| drop(house.table.targets.lock().expect("no panic under the lock").remove(TOKEN)),
    ];
    for change in changes {
        let house = House::new(echo()).await;
        let mut stream = tunnel(&house, PUBLIC, None).await;
        change(&house);
        assert_ends(&mut stream).await;
    }
}

#[tokio::test]
async fn a_tunnel_with_a_good_token_outlives_that_its_port_is_made_private() {
    let house = House::new(echo()).await;
    let mut public = tunnel(&house, PUBLIC, None).await;
    let mut private = tunnel(&house, PUBLIC, Some(&house.token())).await;
    house.change(|target| target.exposed_ports[0].public = false);
    assert_ends(&mut public).await;
    assert_echoes(&mut private).await;
}

#[tokio::test]
async fn a_tunnel_ends_when_its_token_expires() {
    let house = House::new(echo()).await;
    let token = brief_token(&house);
    let mut stream = tunnel(&house, PRIVATE, Some(&token)).await;
    assert_ends(&mut stream).await;
    assert_eq!(house.sessions.verify(&token, SANDBOX), Err(SessionError::Expired), "not before");
}

#[tokio::test]
async fn a_streamed_answer_breaks_off_when_its_token_expires() {
    for http2 in [false, true] {
        let (sender, body) = channel();
        let body = Mutex::new(Some(body));
        let house = House::new(http(move |_, _| {
            let body = body.lock().expect("no panic").take().expect("one request");
            async move { Response::new(body) }
        }))
        .await;
        let token = brief_token(&house);
        let uri = if http2 { format!("http://{PRIVATE}/") } else { "/".into() };
        let request = Request::get(uri).header("x-access-token", &token);
        let request = if http2 { request } else { request.header("host", PRIVATE) };
        let request = request.body(Full::<Bytes>::default()).expect("valid");
        let mut response = match http2 {
            true => soon(house.http2().await.send_request(request)).await.expect("a response"),
            false => house.send(request).await,
        };
        sender.send(Ok("one".into())).await.expect("the guest still sends");
        soon(response.frame()).await.expect("not the end").expect("no error");

        let end = soon(response.frame()).await;
        assert!(matches!(end, Some(Err(_))), "a clean end would look like a complete answer: {end:?}");
        soon(sender.closed()).await;
    }
}

#[tokio::test]
async fn an_upload_breaks_off_when_its_port_is_closed() {
    let (seen, mut states) = mpsc::channel(1);
    let house = House::new(http(move |_, request| {
        let seen = seen.clone();
        async move {
            seen.send("begun").await.expect("the test waits");
            let whole = request.into_body().collect().await;
            seen.send(if whole.is_ok() { "whole" } else { "broken" }).await.expect("the test waits");
            Response::new(full(""))
        }
    }))
    .await;
    let mut stream = TcpStream::connect(house.address).await.expect("connected");
    let head = format!("POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nContent-Length: 100\r\n\r\nsome");
    stream.write_all(head.as_bytes()).await.expect("writable");
    assert_eq!(soon(states.recv()).await, Some("begun"));

    house.change(|target| target.exposed_ports.clear());

    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        assert!(soon(stream.read_buf(&mut answer)).await.expect("readable") > 0, "{answer:?}");
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("not_exposed"), "{answer}");
    assert_eq!(soon(states.recv()).await, Some("broken"), "the guest sees that there is no end");
}
