//! The API's name below the data-plane host: its requests go to the API's listener, and nothing else does.

use std::sync::atomic::AtomicUsize;

use tokio::net::TcpListener;

use super::*;
use crate::Tls;
use crate::stats::{Kind, Outcome, RequestLabels};

const API: &str = "api.sandbox.localhost";

/// An HTTP server on a port of its own, as the API is one.
async fn api<F>(handle: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static) -> SocketAddr
where
    F: Future<Output = Response<GuestBody>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let handle = Arc::new(handle);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let handle = handle.clone();
            let service = service_fn(move |request| {
                let answer = handle(request);
                async move { Ok::<_, io::Error>(answer.await) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Answers with the head of the request, as the API sees it.
async fn mirror_api() -> SocketAddr {
    api(|request| async move {
        let mut fields: Vec<String> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        fields.sort();
        Response::new(full(format!("{} {} at the API\n{}", request.method(), request.uri(), fields.concat())))
    })
    .await
}

async fn house(api: SocketAddr) -> House {
    House::with(IngressConfig { api: Some(api), ..Default::default() }, mirror()).await
}

fn counted(house: &House, kind: Kind, outcome: Outcome) -> u64 {
    house.stats.requests.get_or_create(&RequestLabels { kind, outcome }).get()
}

#[tokio::test]
async fn the_api_sees_credentials_as_they_came_and_who_asks() {
    let house = house(mirror_api().await).await;
    let headers = [
        ("x-api-key", "e2b_0123"),
        ("authorization", "Bearer spt1_of_a_sandbox"),
        ("x-access-token", "spt1_another"),
        ("cookie", "a=1"),
        ("e2b-sandbox-id", SANDBOX),
        ("e2b-sandbox-port", "8000"),
        ("connection", "close, x-secret-hop"),
        ("x-secret-hop", "1"),
        ("proxy-authorization", "Basic eA=="),
        ("x-forwarded-for", "10.9.9.9"),
        ("forwarded", "for=10.9.9.9"),
    ];

    let (status, seen) = house.get(API, "/v2/sandboxes?limit=1&access_token=spt1_x", &headers).await;

    assert_eq!(status, 200);
    let expected = format!(
        "GET /v2/sandboxes?limit=1&access_token=spt1_x at the API\nauthorization: Bearer spt1_of_a_sandbox\n\
         cookie: a=1\ne2b-sandbox-id: {SANDBOX}\ne2b-sandbox-port: 8000\n\
         forwarded: for=127.0.0.1;host=\"{API}\";proto=http\nhost: {API}\nx-access-token: spt1_another\n\
         x-api-key: e2b_0123\nx-forwarded-for: 127.0.0.1\nx-forwarded-host: {API}\nx-forwarded-port: 80\n\
         x-forwarded-proto: http\n"
    );
    assert_eq!(seen, expected);
    assert_eq!(
        (counted(&house, Kind::Api, Outcome::Answered), counted(&house, Kind::DataPlane, Outcome::Answered)),
        (1, 0)
    );
}

#[tokio::test]
async fn the_wildcard_certificate_covers_the_api_over_http2() {
    let config = IngressConfig { api: Some(mirror_api().await), tls: Tls::LocalCa, ..Default::default() };
    let house = House::with(config, mirror()).await;
    let ca = house.ca.clone().expect("an authority");
    let stream = tls::handshake(&house, &ca, API, &[b"h2"]).await.expect("trusted");
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);

    let get = |host: &str| {
        Request::get(format!("https://{host}/health")).body(Full::<Bytes>::default()).expect("a valid request")
    };
    let of_api = text(soon(sender.send_request(get(API))).await.expect("a response")).await;
    let own = format!("49983-{SANDBOX}.sandbox.localhost");
    let of_sandbox = text(soon(sender.send_request(get(&own))).await.expect("a response")).await;

    assert!(
        of_api.starts_with("GET /health at the API\n") && of_api.contains("x-forwarded-proto: https\n"),
        "{of_api}"
    );
    assert!(of_sandbox.starts_with("GET /health on 49983\n"), "{of_sandbox}");
}

#[tokio::test]
async fn pieces_of_bodies_pass_both_ways_as_they_come() {
    let house = house(
        api(|request| async { Response::new(request.into_body().map_err(io::Error::other).boxed_unsync()) }).await,
    )
    .await;
    let (sender, body) = channel();
    let mut response = house.send(Request::post("/").header("host", API).body(body).expect("valid")).await;

    // The next piece exists only after the one before has come back.
    for piece in ["one", "two", "three"] {
        sender.send(Ok(piece.into())).await.expect("the client still sends");
        let frame = soon(response.frame()).await.expect("not the end").expect("no error");
        assert_eq!(frame.into_data().expect("data"), piece);
    }
    drop(sender);
    assert!(soon(response.frame()).await.is_none(), "a clean end");
}

#[tokio::test]
async fn a_connection_to_the_api_serves_one_request_after_another() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let house = house(listener.local_addr().expect("an address")).await;
    let count = accepted.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            count.fetch_add(1, Ordering::Relaxed);
            // Another connection would wait until this one ends.
            let mut asked = [0; 2048];
            while stream.read(&mut asked).await.is_ok_and(|length| length > 0) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.expect("writable");
            }
        }
    });

    for _ in 0..3 {
        assert_eq!(house.get(API, "/", &[]).await, (StatusCode::OK, "hi".to_owned()));
    }

    assert_eq!(accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_api_that_is_down_or_breaks_off_is_told_from_a_sandbox() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let house = house(listener.local_addr().expect("an address")).await;
    let breaks_off = tokio::spawn(async move {
        drop(listener.accept().await.expect("a connection"));
    });

    let (status, answer) = house.get(API, "/v2/sandboxes", &[("x-api-key", "e2b_0123")]).await;
    assert_eq!(status, 502);
    assert!(answer.contains(r#""error":"broken_answer","message":"The API closed the connection"#), "{answer}");
    // Its listener is closed now.
    soon(breaks_off).await.expect("no panic");
    let (status, answer) = house.get(API, "/v2/sandboxes", &[("x-api-key", "e2b_0123")]).await;
    assert_eq!(status, 503);
    assert!(answer.contains(r#""error":"api_unreachable","message":"The API does not accept connections"#), "{answer}");
    assert!(answer.contains(r#""code":503"#) && !answer.contains("e2b_0123"), "{answer}");
    assert_eq!(counted(&house, Kind::Api, Outcome::Unavailable), 2);
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200, "sandboxes are reached all the same");
}

#[tokio::test]
async fn without_the_setting_the_host_is_unknown() {
    let house = House::new(mirror()).await;
    let fields = [("e2b-sandbox-id", SANDBOX), ("e2b-sandbox-port", "8000")];
    for headers in [&[][..], &fields[..]] {
        let (status, answer) = house.get(API, "/", headers).await;
        assert_eq!(status, 404);
        assert!(answer.contains("unknown_host"), "{answer}");
    }
    assert_eq!(counted(&house, Kind::Unknown, Outcome::NotFound), 2);
}

#[tokio::test]
async fn no_other_name_leads_to_the_api() {
    let house = house(mirror_api().await).await;
    let table = [
        ("49983-api.sandbox.localhost", 502),
        ("p7070-api.sandbox.localhost", 502),
        ("api.api.sandbox.localhost", 404),
        ("api.sandbox.localhost.evil.example", 404),
        ("xapi.sandbox.localhost", 502),
        ("127.0.0.1:7080", 404),
    ];
    for (host, expected) in table {
        assert_eq!(house.get(host, "/", &[]).await.0, expected, "{host}");
    }
}

#[tokio::test]
async fn upgrades_are_refused_before_the_api_is_asked() {
    let house = house(mirror_api().await).await;
    let stream = TcpStream::connect(house.address).await.expect("connected");
    let error = soon(tokio_tungstenite::client_async(format!("ws://{API}/mcp"), stream)).await.expect_err("refused");
    assert!(error.to_string().contains("400"), "{error}");

    let mut sender = house.http2().await;
    let get = Request::get(format!("http://{API}/")).body(Full::<Bytes>::default()).expect("valid");
    soon(sender.send_request(get)).await.expect("a response, behind the settings");
    let connect = Request::builder()
        .method("CONNECT")
        .uri(format!("http://{API}/mcp"))
        .extension(hyper::ext::Protocol::from_static("websocket"))
        .body(Full::<Bytes>::default())
        .expect("valid");
    assert_eq!(soon(sender.send_request(connect)).await.expect("a response").status(), 400);
    assert_eq!((counted(&house, Kind::Api, Outcome::Invalid), counted(&house, Kind::Api, Outcome::Answered)), (2, 1));
}

#[tokio::test]
async fn one_client_has_so_many_requests_to_the_api_at_a_time() {
    let (started, mut starts) = mpsc::channel(1);
    let (release, released) = tokio::sync::watch::channel(false);
    let address = api(move |_| {
        let (started, mut released) = (started.clone(), released.clone());
        async move {
            let _ = started.send(()).await;
            let _ = released.wait_for(|released| *released).await;
            Response::new(full("done"))
        }
    })
    .await;
    let config = IngressConfig { api: Some(address), max_requests_per_client: 1, ..Default::default() };
    let house = House::with(config, mirror()).await;
    let mut first = std::pin::pin!(house.get(API, "/", &[]));
    tokio::select! {
        _ = first.as_mut() => panic!("the first request waits"),
        _ = starts.recv() => {}
    }

    let (refused, answer) = house.get(API, "/second", &[]).await;
    let (preview, _) = house.get(PUBLIC, "/", &[]).await;
    release.send_replace(true);

    assert_eq!((refused.as_u16(), preview.as_u16()), (429, 200));
    assert!(answer.contains("Too many of your requests to the API"), "{answer}");
    assert_eq!(first.await.0, 200);
    assert_eq!(counted(&house, Kind::Api, Outcome::Limited), 1);
}
