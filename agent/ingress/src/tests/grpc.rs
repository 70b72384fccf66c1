//! gRPC: HTTP/2 all the way into the guest.

use http::HeaderMap;
use http::header::HeaderValue;
use hyper::body::Body as _;

use super::*;

/// A server that speaks HTTP/2 without having been asked, and answers each message with itself, then trailers.
fn echo() -> Application {
    raw(|_, stream| async move {
        let service = service_fn(|request: Request<Incoming>| async move {
            assert_eq!(request.version(), http::Version::HTTP_2);
            assert_eq!(request.headers()["te"], "trailers");
            assert!(!request.headers().contains_key("connection") && !request.headers().contains_key("host"));
            let heading = format!("{}|{}", request.uri(), request.headers()["x-forwarded-for"].to_str().expect("text"));
            let (frames, receiver) = mpsc::channel::<io::Result<Frame<Bytes>>>(1);
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    let _ = frames.send(Ok(frame)).await;
                }
                let status = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from(0))]);
                let _ = frames.send(Ok(Frame::trailers(status))).await;
            });
            let frames = stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
            let mut response = Response::new(StreamBody::new(frames));
            response.headers_mut().insert("x-heading", heading.parse().expect("a value"));
            Ok::<_, io::Error>(response)
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    })
}

#[tokio::test]
async fn a_call_streams_both_ways_and_ends_with_trailers() {
    let house = House::new(echo()).await;
    let stream = TcpStream::connect(house.address).await.expect("connected");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let (messages, body) = channel();
    let request = Request::post(format!("http://{PUBLIC}/pkg.Service/Method"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .body(body)
        .expect("valid");

    let mut response = soon(sender.send_request(request)).await.expect("a response");
    assert_eq!(response.headers()["x-heading"], format!("http://{PUBLIC}/pkg.Service/Method|127.0.0.1"));
    // The next message is sent when the response to the one before has come.
    for message in ["one", "two"] {
        messages.send(Ok(message.into())).await.expect("still read");
        let frame = soon(response.frame()).await.expect("not the end").expect("no error");
        assert_eq!(frame.into_data().expect("data"), message);
    }
    drop(messages);
    let end = soon(response.frame()).await.expect("trailers").expect("no error");
    assert_eq!(end.into_trailers().expect("trailers")["grpc-status"], "0");
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn calls_follow_each_other_on_one_connection_into_the_guest() {
    let house = House::new(echo()).await;
    let mut sender = house.http2().await;
    for _ in 0..3 {
        let request = Request::post(format!("http://{PUBLIC}/call"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::from("message"))
            .expect("valid");
        let response = soon(sender.send_request(request)).await.expect("a response");
        let collected = soon(response.into_body().collect()).await.expect("whole");
        assert_eq!(collected.trailers().expect("trailers")["grpc-status"], "0");
        assert_eq!(collected.to_bytes(), "message");
    }
}

#[tokio::test]
async fn a_server_that_does_not_speak_http2_is_a_bad_gateway() {
    let house = House::new(mirror()).await;
    let mut sender = house.http2().await;
    let request = Request::post(format!("http://{PUBLIC}/call")).header("content-type", "application/grpc");
    let request = request.body(Full::<Bytes>::default()).expect("valid");
    assert_eq!(soon(sender.send_request(request)).await.expect("a response").status(), 502);
    // What is not gRPC goes to the same server as HTTP/1.1.
    let request = Request::get(format!("http://{PUBLIC}/page")).body(Full::<Bytes>::default()).expect("valid");
    let seen = text(soon(sender.send_request(request)).await.expect("a response")).await;
    assert!(seen.starts_with("GET /page on 8000\n"), "{seen}");
}
