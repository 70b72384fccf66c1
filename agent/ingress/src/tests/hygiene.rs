//! What guests see of a request, and what they never see.

use super::*;

#[tokio::test]
async fn guests_see_end_to_end_fields_and_who_asks() {
    let house = House::new(mirror()).await;
    let headers = [
        ("connection", "close, x-secret-hop"),
        ("x-secret-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic eA=="),
        ("te", "trailers"),
        ("x-forwarded-for", "10.9.9.9"),
        ("x-forwarded-host", "evil.example"),
        ("forwarded", "for=10.9.9.9"),
        ("x-kept", "yes"),
    ];
    let (_, seen) = house.get(PUBLIC, "/", &headers).await;
    let expected = format!(
        "GET / on 8000\nconnection: TE\nforwarded: for=127.0.0.1;host=\"{PUBLIC}\";proto=http\nhost: {PUBLIC}\n\
         te: trailers\nx-forwarded-for: 127.0.0.1\nx-forwarded-host: {PUBLIC}\nx-forwarded-port: 80\n\
         x-forwarded-proto: http\nx-kept: yes\n"
    );
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_trusted_proxy_says_whom_it_speaks_for() {
    let trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    let house = House::with(IngressConfig { trusted_proxies, ..Default::default() }, mirror()).await;
    let headers = [("x-forwarded-for", "192.0.2.7"), ("x-forwarded-proto", "https"), ("x-forwarded-user", "ann")];
    let (_, seen) = house.get(PUBLIC, "/", &headers).await;
    assert!(seen.contains("x-forwarded-for: 192.0.2.7, 127.0.0.1\n"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: https\n") && seen.contains("x-forwarded-port: 443\n"), "{seen}");
    assert!(seen.contains("x-forwarded-user: ann\n"), "{seen}");
}

#[tokio::test]
async fn no_guest_ever_sees_an_access_token() {
    let house = House::new(mirror()).await;
    let token = house.token();
    let foreign = house.sessions.mint("sbx06bbbbbbbbbbbbbbbbbbbbb", None).0;
    let bearer = format!("Bearer {foreign}");
    for host in [HOST, PUBLIC, PRIVATE] {
        let headers = [("authorization", bearer.as_str()), ("x-access-token", &token), ("cookie", "a=1")];
        let (status, seen) = house.get(host, &format!("/?x=1&access_token={token}"), &headers).await;
        assert_eq!(status, 200);
        assert!(seen.starts_with("GET /?x=1 on "), "{seen}");
        assert!(!seen.contains("spt1_") && seen.contains("cookie: a=1"), "{seen}");
    }
    // The Linux user of the data plane, and an application's own credential.
    let (_, seen) = house.get(HOST, "/", &[("authorization", "Basic cm9vdDo="), ("x-access-token", &token)]).await;
    assert!(seen.contains("authorization: Basic cm9vdDo=\n"), "{seen}");
    let (_, seen) = house.get(PUBLIC, "/", &[("authorization", "Bearer app")]).await;
    assert!(seen.contains("authorization: Bearer app\n"), "{seen}");
}

#[tokio::test]
async fn trailers_of_a_client_are_left_out() {
    let house = House::new(http(|_, request| async move {
        let collected = request.into_body().collect().await.expect("whole");
        let trailers = collected.trailers().map_or(0, |trailers| trailers.len());
        Response::new(full(format!("{trailers} behind {:?}", collected.to_bytes())))
    }))
    .await;
    let chunks = "4\r\nbody\r\n0\r\nX-Forwarded-For: 10.9.9.9\r\nX-Access-Token: spt1_x\r\n\r\n";
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\nTrailer: x-forwarded-for, x-access-token\r\n\
         Transfer-Encoding: chunked\r\n\r\n{chunks}"
    );
    let answer = house.raw(&request).await;
    assert!(answer.contains("0 behind b\"body\""), "{answer}");
}

#[tokio::test]
async fn contradicting_hosts_are_refused() {
    let house = House::new(mirror()).await;
    let table = [
        format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nHost: {PRIVATE}\r\nConnection: close\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n"),
        format!("GET http://{PUBLIC}/ HTTP/1.1\r\nHost: {PRIVATE}\r\nConnection: close\r\n\r\n"),
        format!("GET ftp://{PUBLIC}/ HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: user@{PUBLIC}\r\nConnection: close\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {PUBLIC}, {PRIVATE}\r\nConnection: close\r\n\r\n"),
        "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
    ];
    for request in table {
        let answer = house.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.0 400"), "{request}{answer}");
    }
    let absolute = format!("GET http://{PUBLIC}/x HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n");
    let answer = house.raw(&absolute).await;
    assert!(answer.contains("GET /x on 8000"), "{answer}");
}

#[tokio::test]
async fn connect_is_not_served() {
    let house = House::new(mirror()).await;
    let request = format!("CONNECT {PUBLIC}:80 HTTP/1.1\r\nHost: {PUBLIC}:80\r\nConnection: close\r\n\r\n");
    let answer = house.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[tokio::test]
async fn heads_without_end_or_measure_are_refused() {
    let house = House::new(mirror()).await;
    let many: String = (0..200).map(|number| format!("X-{number}: 1\r\n")).collect();
    let answer = house.raw(&format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn answers_lose_what_concerns_the_guests_connection() {
    let answer = "HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\n\
                  X-End: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nhi";
    let house = House::new(scripted(answer, false)).await;
    let request = Request::get("/").header("host", PUBLIC).body(Full::<Bytes>::default()).expect("valid");
    let response = house.send(request).await;
    let headers = response.headers();
    assert!(
        !headers.contains_key("x-hop") && !headers.contains_key("keep-alive") && !headers.contains_key("connection")
    );
    assert_eq!((headers["x-end"].as_bytes(), headers.get_all("set-cookie").iter().count()), (&b"2"[..], 2));
    assert_eq!(text(response).await, "hi");
}

#[tokio::test]
async fn a_guest_that_does_not_speak_http_is_a_bad_gateway() {
    let house = House::new(scripted("SSH-2.0-OpenSSH_9.2\r\n", false)).await;
    let (status, answer) = house.get(PUBLIC, "/", &[]).await;
    assert_eq!(status, 502);
    assert!(answer.starts_with(r#"{"error":"broken_answer""#), "{answer}");
}
