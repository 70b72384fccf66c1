//! When a connection into the guest serves another request, and what happens when it cannot.

use super::*;

/// Counts connections, and hands each to `serve` with its number, from 1.
fn numbered<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(usize, GuestStream) -> F + Send + Sync + 'static,
) -> (Arc<AtomicUsize>, Application) {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let application = raw(move |_, stream| serve(count.fetch_add(1, Ordering::SeqCst) + 1, stream));
    (opened, application)
}

/// Answers request after request with the connection's number.
async fn answer_all(number: usize, mut stream: GuestStream) {
    while !head(&mut stream).await.is_empty() {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{number}", number.to_string().len());
        let _ = stream.get_mut().write_all(answer.as_bytes()).await;
    }
}

/// Asks until the response comes over connection `expected`: a link waits a moment after its response is complete.
async fn until(house: &House, expected: &str) {
    let asked = async { while house.get(PUBLIC, "/", &[]).await.1 != expected {} };
    soon(asked).await;
}

#[tokio::test]
async fn requests_share_a_connection_one_after_the_other() {
    let (opened, application) = numbered(answer_all);
    let house = House::new(application).await;
    for _ in 0..20 {
        assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200);
    }
    assert!(opened.load(Ordering::SeqCst) < 20, "{opened:?}");
}

#[tokio::test]
async fn a_guest_that_closes_is_connected_to_again() {
    let (opened, application) = numbered(|_, mut stream| async move {
        head(&mut stream).await;
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        let _ = stream.get_mut().write_all(answer.as_bytes()).await;
    });
    let house = House::new(application).await;
    for _ in 0..3 {
        assert_eq!(house.get(PUBLIC, "/", &[]).await.1, "hi");
    }
    assert_eq!(opened.load(Ordering::SeqCst), 3);
}

/// Its first connection answers once, and then closes as soon as it reads another request.
fn fickle() -> (Arc<AtomicUsize>, Application) {
    numbered(|number, mut stream| async move {
        if number > 1 {
            return answer_all(number, stream).await;
        }
        head(&mut stream).await;
        let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1").await;
        head(&mut stream).await;
    })
}

#[tokio::test]
async fn a_harmless_request_is_sent_again_when_its_connection_ends() {
    let (_, application) = fickle();
    let house = House::new(application).await;
    assert_eq!(house.get(PUBLIC, "/", &[]).await.1, "1");
    // Whether it met the old connection or not, it is answered.
    until(&house, "2").await;
}

#[tokio::test]
async fn a_request_that_may_have_been_carried_out_is_not_sent_again() {
    let (opened, application) = fickle();
    let house = House::new(application).await;
    assert_eq!(house.get(PUBLIC, "/", &[]).await.1, "1");
    let post = Request::post("/").header("host", PUBLIC).body(Full::<Bytes>::from("once")).expect("valid");
    let response = house.send(post).await;
    // Over the first connection it is lost; over another one it is answered. It is never on both.
    let outcome = (response.status().as_u16(), opened.load(Ordering::SeqCst));
    assert!(matches!(outcome, (502, 1) | (200, 2)), "{outcome:?}");
}

#[tokio::test]
async fn an_answer_given_up_half_way_closes_its_connection() {
    let (sender, mut ended) = mpsc::channel(1);
    let (opened, application) = numbered(move |_, mut stream| {
        let sender = sender.clone();
        async move {
            head(&mut stream).await;
            let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
            let _ = sender.send(()).await;
        }
    });
    let house = House::new(application).await;
    let request = Request::get("/").header("host", PUBLIC).body(Full::<Bytes>::default()).expect("valid");
    let response = house.send(request).await;
    drop(response);
    soon(ended.recv()).await.expect("closed");
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_soon() {
    let (sender, mut ended) = mpsc::channel(1);
    let (_, application) = numbered(move |number, stream| {
        let sender = sender.clone();
        async move {
            answer_all(number, stream).await;
            let _ = sender.send(()).await;
        }
    });
    let house = House::new(application).await;
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200);
    soon(ended.recv()).await.expect("closed");
}

#[tokio::test]
async fn servers_of_other_ports_have_connections_of_their_own() {
    let application = raw(|port, stream| answer_all(port as usize, stream));
    let house = House::new(application).await;
    let token = house.token();
    for _ in 0..3 {
        assert_eq!(house.get(PUBLIC, "/", &[]).await.1, "8000");
        assert_eq!(house.get(PRIVATE, "/", &[("x-access-token", &token)]).await.1, "8001");
        assert_eq!(house.get(HOST, "/health", &[]).await.1, "49983");
    }
}
