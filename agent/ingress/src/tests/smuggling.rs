//! Requests that one reader could take for two: they are answered 400, their connection ends, and no guest sees what
//! they hide.

use super::*;

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: p8001-route0token1.sandbox.localhost\r\n\r\n";

/// Records every byte that reaches the guest, and answers each request with 204.
fn recorder() -> (Arc<Mutex<String>>, Application) {
    let seen = Arc::new(Mutex::new(String::new()));
    let copy = seen.clone();
    let application = raw(move |_, mut stream| {
        let seen = copy.clone();
        async move {
            let head = head(&mut stream).await;
            seen.lock().expect("no panic").push_str(&head);
            stream.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("writable");
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                seen.lock().expect("no panic").push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        }
    });
    (seen, application)
}

#[tokio::test]
async fn ambiguous_heads_never_reach_a_guest() {
    let (seen, application) = recorder();
    let house = House::new(application).await;
    let table = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "Content-Length: +5\r\n\r\nhello",
        "Content-Length: -5\r\n\r\nhello",
        "Content-Length: 0x5\r\n\r\nhello",
        "Content-Length: 5, 5\r\n\r\nhello",
        "Content-Length:\r\n\r\nhello",
        "Content-Length: 5 5\r\n\r\nhello",
        "Content-Length : 5\r\n\r\nhello",
        "Content-Length: 18446744073709551617\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n\r\n",
        "X: a\r\n b: c\r\n\r\n",
        "X: a\r\n\tb\r\n\r\n",
        "X: a\rTransfer-Encoding: chunked\r\n\r\n",
        "X: a\nTransfer-Encoding: chunked\r\n\r\n",
        "X: a\n\n",
        "X: a\r\n\n",
        "X: a\r\n\r\r\n",
        "X: a\0b\r\n\r\n",
        "X\0: a\r\n\r\n",
        "no colon\r\n\r\n",
        ": no name\r\n\r\n",
    ];
    for fields in table {
        let request = format!("POST / HTTP/1.1\r\nHost: {PUBLIC}\r\n{fields}{SMUGGLED}");
        let answer = house.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{fields:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "one answer, then the end: {answer}");
    }
    for line in
        ["GET  / HTTP/1.1", "GET / HTTP/1.1 ", "GET / HTTP/1.1\r", "GET /a b HTTP/1.1", "GET / HTTP/3.7", "GET /\n"]
    {
        let answer = house.raw(&format!("{line}\r\nHost: {PUBLIC}\r\n\r\n{SMUGGLED}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{line:?}: {answer}");
    }
    let old = format!("POST / HTTP/1.0\r\nHost: {PUBLIC}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}");
    assert!(house.raw(&old).await.contains(" 400 "), "HTTP/1.0 has no chunks");
    assert_eq!(*seen.lock().expect("no panic"), "");
}

#[tokio::test]
async fn broken_chunks_end_the_request_and_its_connection() {
    let table = [
        "5;a\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "0\r\n\n",
        "0\r\nX: 1\n\r\n",
    ];
    for chunks in table {
        let (seen, application) = recorder();
        let house = House::new(application).await;
        let head = format!("POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nTransfer-Encoding: chunked\r\n\r\n");

        let answer = house.raw(&format!("{head}{chunks}{SMUGGLED}")).await;

        // The recorder answers early; without it the client would always read 400.
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{chunks:?}: one answer, then the end: {answer}");
        assert!(!seen.lock().expect("no panic").contains("smuggled"), "{chunks:?}");
    }
}

#[tokio::test]
async fn broken_chunks_are_answered_400() {
    let house = House::new(http(|_, request| async move {
        let _ = request.into_body().collect().await;
        Response::new(full("read"))
    }))
    .await;
    for chunks in ["5\nhello\r\n0\r\n\r\n", "5\r\nhelloX\r\n0\r\n\r\n", "5;a\nhello\r\n0\r\n\r\n", "0\r\nX: 1\n\r\n"] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{SMUGGLED}");
        let answer = house.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{chunks:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{chunks:?}: one answer, then the end: {answer}");
    }
}

#[tokio::test]
async fn what_follows_a_declined_upgrade_is_not_read() {
    let house = House::new(mirror()).await;
    for upgrade in ["websocket", "h2c"] {
        let request = format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: upgrade\r\nUpgrade: {upgrade}\r\n\r\n");
        let answer = house.raw(&format!("{request}{SMUGGLED}")).await.to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 200") && answer.contains("connection: close\r\n"), "{answer}");
        assert_eq!(answer.matches("http/1.1 ").count(), 1, "one answer, then the end: {answer}");
    }
}

#[tokio::test]
async fn good_requests_follow_each_other_on_one_connection() {
    let house = House::new(http(|_, request| async move {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.expect("whole").to_bytes();
        Response::new(full(format!("<{path} {}>", String::from_utf8_lossy(&body))))
    }))
    .await;
    let answer = house
        .raw(&format!(
            "POST /1 HTTP/1.1\r\nHost: {PUBLIC}\r\nContent-Length: 5\r\n\r\nGET\n\n\
             POST /2 HTTP/1.1\r\nHost: {PUBLIC}\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;x=\"y\"\r\none\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n\
             \r\nGET /3 HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let bodies: Vec<&str> = answer.split('<').skip(1).filter_map(|rest| Some(rest.split_once('>')?.0)).collect();
    assert_eq!(bodies, ["/1 GET\n\n", "/2 one0123456789", "/3 "], "{answer}");
}
