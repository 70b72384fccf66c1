//! Requests that meet a sandbox just as it is paused at its deadline.

use tokio::sync::Notify;

use super::*;

/// A guest that is paused while it has its first request, of which it says `first`, and from then on answers.
struct Pausing {
    has_asked: Arc<Notify>,
    may_end: Arc<Notify>,
}

impl Pausing {
    fn new(first: &'static [u8]) -> (Self, Application) {
        let (has_asked, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let this = Self { has_asked: has_asked.clone(), may_end: may_end.clone() };
        let connections = Arc::new(AtomicUsize::new(0));
        let application = raw(move |_, mut stream| {
            let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
            let (has_asked, may_end) = (has_asked.clone(), may_end.clone());
            async move {
                head(&mut stream).await;
                if !is_first {
                    let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwoken").await;
                    return;
                }
                stream.get_mut().write_all(first).await.expect("writable");
                has_asked.notify_one();
                may_end.notified().await;
            }
        });
        (this, application)
    }

    /// The sandbox is paused while it has a request, and its connections end.
    async fn pause(&self, house: &House) {
        soon(self.has_asked.notified()).await;
        house.change(|target| (target.state, target.wakes) = (SandboxState::Stopped, true));
        self.may_end.notify_one();
    }
}

#[tokio::test]
async fn a_request_that_got_no_answer_wakes_the_sandbox_and_is_sent_again() {
    let (pausing, application) = Pausing::new(b"");
    let house = House::new(application).await;

    let (answer, ()) = tokio::join!(house.get(PUBLIC, "/", &[]), pausing.pause(&house));

    assert_eq!(answer, (StatusCode::OK, "woken".into()));
    assert_eq!(house.table.woken.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_request_that_may_have_been_carried_out_is_not_sent_again_and_wakes_nobody() {
    let (pausing, application) = Pausing::new(b"");
    let house = House::new(application).await;
    let post = Request::post("/").header("host", PUBLIC).body(Full::<Bytes>::from("once")).expect("valid");

    let (response, ()) = tokio::join!(house.send(post), pausing.pause(&house));

    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(house.table.woken.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_request_that_no_monitor_took_wakes_the_sandbox_whatever_it_is() {
    let house = House::new(mirror()).await;
    let vsock = house.folder.path().join("vsock");
    let kept = house.folder.path().join("kept");
    std::fs::rename(&vsock, &kept).expect("its socket goes with a monitor");
    // The directory is asked before and after: as if the pause were over in between.
    let asked = AtomicUsize::new(0);
    *house.table.meanwhile.lock().expect("no panic under the lock") = Some(Box::new(move |target| {
        if asked.fetch_add(1, Ordering::Relaxed) == 1 {
            std::fs::rename(&kept, &vsock).expect("the next monitor has it again");
            (target.state, target.wakes) = (SandboxState::Stopped, true);
        }
    }));
    let post = Request::post("/").header("host", PUBLIC).body(Full::<Bytes>::from("once")).expect("valid");

    let response = house.send(post).await;

    assert_eq!(response.status(), StatusCode::OK);
    assert!(text(response).await.starts_with("POST / on 8000"));
    assert_eq!(house.table.woken.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_stream_of_the_data_plane_that_is_cut_off_ends_with_an_error_of_its_own() {
    let (pausing, application) = Pausing::new(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n\
          7\r\n\0\0\0\0\x02{}\r\n",
    );
    let house = House::new(application).await;
    let token = house.token();

    let headers = [("x-access-token", token.as_str())];
    let ((status, body), ()) = tokio::join!(house.get(HOST, "/", &headers), pausing.pause(&house));

    assert_eq!(status, StatusCode::OK);
    let (first, end) = body.split_at(7);
    assert_eq!(first, "\0\0\0\0\x02{}");
    assert!(end.starts_with("\x02\0\0\0") && end.contains(r#"{"error":{"code":"unavailable""#), "{body:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_never_taken_for_a_whole_one() {
    for answer in [
        // No stream, one that is cut within a message, and one of a preview, which may mean anything.
        (HOST, &b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"[..]),
        (
            HOST,
            b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n\
              6\r\n\0\0\0\0\x02{\r\n",
        ),
        (
            PUBLIC,
            b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n\
              7\r\n\0\0\0\0\x02{}\r\n",
        ),
    ] {
        let (host, answer) = answer;
        let (pausing, application) = Pausing::new(answer);
        let house = House::new(application).await;
        let request = Request::get("/").header("host", host).header("x-access-token", house.token());
        let request = request.body(Full::<Bytes>::default()).expect("valid");

        let (response, ()) = tokio::join!(house.send(request), pausing.pause(&house));

        assert!(soon(response.into_body().collect()).await.is_err());
    }
}
