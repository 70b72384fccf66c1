//! Bodies on their way, and what happens when one side gives up.

use sha2::{Digest, Sha256};

use super::*;

const MANY: usize = 20 * 1024 * 1024;

/// Bytes that repeat nowhere in a buffer's distance.
fn many() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).take(MANY / 8).flatten().collect()
}

#[tokio::test]
async fn pieces_arrive_as_they_are_sent() {
    let (sender, body) = channel();
    let body = Mutex::new(Some(body));
    let house = House::new(http(move |_, _| {
        let body = body.lock().expect("no panic").take().expect("one request");
        async move { Response::new(body) }
    }))
    .await;
    let request = Request::get("/").header("host", PUBLIC).body(Full::<Bytes>::default()).expect("valid");
    let mut response = house.send(request).await;

    // The next piece exists only after the one before has come through.
    for piece in ["one", "two", "three"] {
        sender.send(Ok(piece.into())).await.expect("the guest still sends");
        let frame = soon(response.frame()).await.expect("not the end").expect("no error");
        assert_eq!(frame.into_data().expect("data"), piece);
    }
    drop(sender);
    assert!(soon(response.frame()).await.is_none(), "a clean end");
}

#[tokio::test]
async fn much_goes_down_and_up_unchanged() {
    let content = many();
    let copy = content.clone();
    let house = House::new(http(move |_, request| {
        let content = copy.clone();
        async move {
            if request.method() == http::Method::GET {
                return Response::new(full(content));
            }
            let length = request.headers().get("content-length").cloned();
            let body = request.into_body().collect().await.expect("a whole body").to_bytes();
            Response::new(full(format!("{length:?} {:x?}", Sha256::digest(&body))))
        }
    }))
    .await;

    let get = Request::get("/").header("host", PUBLIC).body(Full::<Bytes>::default()).expect("valid");
    let down = soon(house.send(get).await.into_body().collect()).await.expect("a whole body").to_bytes();
    assert!(down == content, "the download differs");

    let digest = format!("{:x?}", Sha256::digest(&content));
    let sized = Request::post("/").header("host", PUBLIC).body(Full::new(content.clone())).expect("valid");
    assert_eq!(text(house.send(sized).await).await, format!("Some(\"{MANY}\") {digest}"));

    let pieces: Vec<io::Result<Frame<Bytes>>> =
        (0..MANY).step_by(64 * 1024).map(|at| Ok(Frame::data(content.slice(at..at + 64 * 1024)))).collect();
    let chunked = Request::post("/").header("host", PUBLIC).body(StreamBody::new(stream::iter(pieces))).expect("valid");
    assert_eq!(text(house.send(chunked).await).await, format!("None {digest}"));
}

#[tokio::test]
async fn an_upload_goes_on_while_its_answer_is_not_read() {
    let (sender, mut uploaded) = mpsc::channel(1);
    let house = House::new(raw(move |_, mut stream| {
        let sender = sender.clone();
        async move {
            head(&mut stream).await;
            let (mut body, mut answer) = tokio::io::split(stream);
            let answering = async move {
                let _ = answer.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {MANY}\r\n\r\n").as_bytes()).await;
                let _ = answer.write_all(&many()).await;
            };
            let reading = async move {
                body.read_exact(&mut vec![0; MANY]).await.expect("a whole body");
                let _ = sender.send(()).await;
            };
            tokio::join!(answering, reading);
        }
    }))
    .await;
    let mut stream = TcpStream::connect(house.address).await.expect("connected");
    let head = format!("POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nContent-Length: {MANY}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("writable");
    soon(stream.write_all(&many())).await.expect("taken");
    soon(uploaded.recv()).await.expect("the guest has all of it");

    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.expect("readable");
    assert!(answer.ends_with(&many()), "the response differs");
}

#[tokio::test]
async fn a_get_may_have_a_body() {
    let house = House::new(http(|_, request| async move {
        Response::new(full(request.into_body().collect().await.expect("whole").to_bytes()))
    }))
    .await;
    let answer = house
        .raw(&format!(
            "GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
             5\r\nhello\r\n0\r\n\r\n"
        ))
        .await;
    assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
}

#[tokio::test]
async fn a_client_that_waits_for_100_is_told_to_continue() {
    let house = House::new(http(|_, request| async move {
        let expects = request.headers().contains_key("expect");
        let body = request.into_body().collect().await.expect("whole").to_bytes();
        Response::new(full(format!("{expects} {}", String::from_utf8_lossy(&body))))
    }))
    .await;
    let mut stream = BufReader::new(TcpStream::connect(house.address).await.expect("connected"));
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {PUBLIC}\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
    );
    stream.get_mut().write_all(head.as_bytes()).await.expect("writable");
    let mut line = String::new();
    soon(stream.read_line(&mut line)).await.expect("readable");
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    stream.get_mut().write_all(b"hello").await.expect("writable");
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.expect("readable");
    assert!(rest.ends_with("\r\n\r\nfalse hello"), "{rest}");
}

#[tokio::test]
async fn answers_without_body_stay_so() {
    let house = House::new(raw(|_, mut stream| async move {
        loop {
            let answer = match head(&mut stream).await.split(' ').nth(1) {
                Some("/204") => "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
                Some("/304") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 1000\r\n\r\n",
                Some(_) => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
                None => break,
            };
            let _ = stream.get_mut().write_all(answer.as_bytes()).await;
        }
    }))
    .await;
    let ask =
        |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n");

    let answer = house.raw(&ask("HEAD", "/")).await.to_ascii_lowercase();
    assert!(answer.contains("\r\ncontent-length: 1000\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = house.raw(&ask("GET", "/204")).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 204") && !answer.contains("content-length"), "{answer}");
    assert!(!answer.contains("transfer-encoding") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = house.raw(&ask("GET", "/304")).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 304") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn trailers_follow_where_the_client_takes_them() {
    let answer = "HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                  2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n";
    let house = House::new(scripted(answer, false)).await;
    let request = Request::get("/").header("host", PUBLIC).header("te", "trailers").header("connection", "TE");
    let response = house.send(request.body(Full::<Bytes>::default()).expect("valid")).await;
    let collected = soon(response.into_body().collect()).await.expect("whole");
    assert_eq!(collected.trailers().expect("trailers")["x-sum"], "7");
}

#[tokio::test]
async fn a_guest_that_breaks_off_breaks_the_answer() {
    // With a length, and chunked: both ends are missing.
    for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n2\r\nhi\r\n");
        let house = House::new(scripted(answer, true)).await;
        let request = Request::get("/").header("host", PUBLIC).body(Full::<Bytes>::default()).expect("valid");
        let response = house.send(request).await;
        assert_eq!(response.status(), 200);
        soon(response.into_body().collect()).await.expect_err("no clean end");
    }
}

#[tokio::test]
async fn a_guest_that_dies_before_it_answers_is_a_bad_gateway() {
    let house = House::new(scripted("", true)).await;
    let (status, answer) = house.get(PUBLIC, "/", &[]).await;
    assert_eq!(status, 502);
    assert!(answer.starts_with(r#"{"error":"broken_answer""#), "{answer}");
}

#[tokio::test]
async fn the_guest_learns_that_the_client_has_gone() {
    // Before a response, and in the middle of one.
    for answer in ["", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"] {
        let (sender, mut ended) = mpsc::channel(1);
        let (started, mut starts) = mpsc::channel(1);
        let house = House::new(raw(move |_, mut stream| {
            let (sender, started) = (sender.clone(), started.clone());
            async move {
                head(&mut stream).await;
                stream.get_mut().write_all(answer.as_bytes()).await.expect("writable");
                let _ = started.send(()).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
                let _ = sender.send(()).await;
            }
        }))
        .await;
        let mut stream = TcpStream::connect(house.address).await.expect("connected");
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\n\r\n").as_bytes()).await.expect("writable");
        soon(starts.recv()).await.expect("the guest was asked");
        if !answer.is_empty() {
            soon(stream.read_exact(&mut [0; 12])).await.expect("the response began");
        }

        drop(stream);

        soon(ended.recv()).await.expect("the guest's connection ended");
    }
}

#[tokio::test]
async fn shutting_down_lets_a_request_end() {
    let (sender, body) = channel();
    let body = Mutex::new(Some(body));
    let house = House::new(http(move |_, _| {
        let body = body.lock().expect("no panic").take().expect("one request");
        async move { Response::new(body) }
    }))
    .await;
    let request = Request::get("/").header("host", PUBLIC).body(Full::<Bytes>::default()).expect("valid");
    let response = house.send(request).await;

    house.shutdown.cancel();
    sender.send(Ok("the rest".into())).await.expect("the guest still sends");
    drop(sender);

    assert_eq!(text(response).await, "the rest");
    soon(house.served).await.expect("no panic");
    TcpStream::connect(house.address).await.expect_err("no longer listening");
}
