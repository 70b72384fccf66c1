//! What one sandbox and one client may occupy, and for how long a client may do nothing.

use super::*;

/// Says through the channel that a request has come, and answers when told to.
fn patient() -> (Application, mpsc::Receiver<()>, tokio::sync::watch::Sender<bool>) {
    let (release, released) = tokio::sync::watch::channel(false);
    let (started, starts) = mpsc::channel(16);
    let application = http(move |_, _| {
        let (mut released, started) = (released.clone(), started.clone());
        async move {
            let _ = started.send(()).await;
            let _ = released.wait_for(|released| *released).await;
            Response::new(full("done"))
        }
    });
    (application, starts, release)
}

#[tokio::test]
async fn one_sandbox_has_so_many_requests_at_a_time() {
    let (application, mut starts, release) = patient();
    let house = House::with(IngressConfig { max_requests_per_sandbox: 1, ..Default::default() }, application).await;
    let mut first = std::pin::pin!(house.get(PUBLIC, "/", &[]));
    tokio::select! {
        _ = first.as_mut() => panic!("the first request waits"),
        _ = starts.recv() => {}
    }

    let (refused, answer) = house.get(PUBLIC, "/second", &[]).await;
    // The data plane has places of its own.
    release.send_replace(true);
    let (health, _) = house.get(HOST, "/health", &[]).await;

    assert_eq!(refused, 503);
    assert!(answer.contains("too_many_requests_in_flight"), "{answer}");
    assert_eq!((health.as_u16(), first.await.0.as_u16()), (200, 200));
}

#[tokio::test]
async fn a_sandbox_that_has_used_up_the_memory_of_requests_is_told_and_keeps_its_data_plane() {
    let (application, mut starts, release) = patient();
    let house = House::with(IngressConfig { requests_memory_mb: 1, ..Default::default() }, application).await;
    let asking: Vec<_> = (0..12).map(|_| house.get(PUBLIC, "/", &[])).collect();
    let mut asking = std::pin::pin!(futures_util::future::join_all(asking));
    for _ in 0..12 {
        tokio::select! {
            _ = asking.as_mut() => panic!("the requests wait"),
            _ = starts.recv() => {}
        }
    }

    let (refused, answer) = house.get(PUBLIC, "/another", &[]).await;
    release.send_replace(true);
    let (health, _) = house.get(HOST, "/health", &[]).await;

    assert_eq!((refused.as_u16(), health.as_u16()), (503, 200));
    assert!(answer.contains("proxy_memory_exhausted"), "{answer}");
    assert!(asking.await.iter().all(|(status, _)| *status == 200));
    assert_eq!(house.get(PUBLIC, "/later", &[]).await.0, 200);
}

#[tokio::test]
async fn one_visitor_has_so_many_requests_at_a_time() {
    let (application, mut starts, release) = patient();
    let trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    let config = IngressConfig { max_requests_per_client: 1, trusted_proxies, ..Default::default() };
    let house = House::with(config, application).await;
    let ann = [("x-forwarded-for", "192.0.2.1")];
    let mut first = std::pin::pin!(house.get(PUBLIC, "/", &ann));
    tokio::select! {
        _ = first.as_mut() => panic!("the first request waits"),
        _ = starts.recv() => {}
    }

    let request = Request::get("/").header("host", PUBLIC).header("x-forwarded-for", "192.0.2.1");
    let refused = house.send(request.body(Full::<Bytes>::default()).expect("valid")).await;
    release.send_replace(true);
    let (other, _) = house.get(PUBLIC, "/", &[("x-forwarded-for", "192.0.2.2")]).await;

    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].as_bytes()), (429, &b"1"[..]));
    assert_eq!((other.as_u16(), first.await.0.as_u16()), (200, 200));
}

#[tokio::test]
async fn connections_beyond_the_limit_are_turned_away() {
    let house = House::with(IngressConfig { max_connections: 1, ..Default::default() }, mirror()).await;
    let mut held = TcpStream::connect(house.address).await.expect("connected");
    held.write_all(format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\n\r\n").as_bytes()).await.expect("writable");
    let mut head = [0; 12];
    soon(held.read_exact(&mut head)).await.expect("a response");
    assert_eq!(&head, b"HTTP/1.1 200");

    // Without a request, so that nothing of ours is unread when the other side closes.
    let answer = house.raw("").await;

    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(house.stats.connections_refused.get(), 1);
}

#[tokio::test]
async fn one_client_has_so_many_connections() {
    let config = IngressConfig { max_connections_per_client: 1, ..Default::default() };
    let house = House::with(config, mirror()).await;
    let first = TcpStream::connect(house.address).await.expect("connected");
    assert!(house.raw("").await.starts_with("HTTP/1.1 503"), "the second is turned away");
    drop(first);
    // The place is free once the listener has seen the end.
    let free = async {
        while house.raw(&format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n")).await.contains("503")
        {
            tokio::task::yield_now().await;
        }
    };
    soon(free).await;
}

#[tokio::test]
async fn a_trusted_proxy_has_as_many_connections_as_it_needs() {
    let trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    let config = IngressConfig { max_connections_per_client: 1, trusted_proxies, ..Default::default() };
    let house = House::with(config, mirror()).await;
    let _first = TcpStream::connect(house.address).await.expect("connected");
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200);
}

#[tokio::test]
async fn a_client_that_pauses_in_its_request_is_told() {
    let house = House::with(
        IngressConfig { body_timeout_seconds: 1, ..Default::default() },
        http(|_, request| async move {
            let _ = request.into_body().collect().await;
            Response::new(full("read"))
        }),
    )
    .await;
    let answer = house.raw(&format!("POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nContent-Length: 10\r\n\r\nhalf")).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn a_guest_that_says_nothing_is_a_gateway_timeout() {
    let config = IngressConfig { idle_timeout_seconds: 2, ..Default::default() };
    let house = House::with(config, scripted("", false)).await;
    let answer = house.raw(&format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
}

#[tokio::test]
async fn a_client_that_resets_stream_after_stream_loses_its_connection() {
    let house = House::new(mirror()).await;
    let mut stream = TcpStream::connect(house.address).await.expect("connected");
    let frame = |kind: u8, flags: u8, id: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
    };
    let mut flood = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    for id in (1..2000).step_by(2) {
        // HEADERS that end the stream: `:method GET`, `:scheme http`, `:path /`; then RST_STREAM with CANCEL.
        flood.extend(frame(1, 0x5, id, &[0x82, 0x86, 0x84]));
        flood.extend(frame(3, 0, id, &[0, 0, 0, 8]));
    }
    // The other side may have closed before it has read all of it.
    let _ = stream.write_all(&flood).await;
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    // GOAWAY with ENHANCE_YOUR_CALM.
    assert!(answer.windows(4).any(|code| code == [0, 0, 0, 11]), "{answer:?}");
}
