//! What every answer, and every way not to answer, means for the delivery.

use std::time::Duration;

use sandpiper_payments::delivery::sender::ATTEMPT_LIMIT;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::{AttemptRow, State};

use super::receiver::{Greeting, Reaction, Receiver};
use super::stage::{LIMIT, Stage, dependencies};

/// The first attempt of a delivery to this receiver, and the state that it left.
async fn attempt(receiver: &Receiver) -> (AttemptRow, State) {
    let stage = Stage::towards(receiver).await;
    let delivery = stage.pay("pay_1").await;
    stage.worker(receiver).round().await.unwrap();
    let [attempt] = &stage.attempts(&delivery).await[..] else { panic!("one attempt") };
    (attempt.clone(), stage.delivery(&delivery).await.state)
}

/// Likewise, of one that did not end in an answer.
#[track_caller]
fn class((attempt, state): &(AttemptRow, State)) -> &'static str {
    assert_eq!((*state, attempt.status), (State::Pending, None), "{attempt:?}");
    let delay = attempt.next_at.unwrap().duration_since(attempt.started_at);
    assert!(delay.as_secs() >= 10 && delay.as_secs() <= 12, "{attempt:?}");
    attempt.error_class.unwrap().as_str()
}

/// Between two bytes of an answer that drips.
const PAUSE: Duration = Duration::from_millis(20);

/// How much longer than the limit an attempt may take.
const A_SECOND: Duration = Duration::from_secs(1);

fn duration(attempt: &AttemptRow) -> Duration {
    Duration::from_millis(attempt.duration_ms.unwrap())
}

/// Asserts how many seconds after the end of the first attempt the second is due.
async fn assert_delay(receiver: &Receiver, expected: std::ops::RangeInclusive<i64>) {
    let (attempt, state) = attempt(receiver).await;
    assert_eq!(state, State::Pending);
    let ended_at = attempt.started_at + duration(&attempt);
    let seconds = attempt.next_at.unwrap().duration_since(ended_at).as_secs();
    assert!(expected.contains(&seconds), "{seconds}: {:?}", receiver.received());
}

#[test]
fn an_attempt_takes_thirty_seconds_at_most() {
    assert_eq!(ATTEMPT_LIMIT, Duration::from_secs(30));
}

#[tokio::test]
async fn every_2xx_acknowledges() {
    for status in [200, 201, 202, 204, 299] {
        let receiver = Receiver::scripted(move |_, _| match status {
            204 => Reaction::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
            _ => Reaction::status(status),
        })
        .await;
        let (attempt, state) = attempt(&receiver).await;
        assert_eq!((state, attempt.status, attempt.next_at), (State::Delivered, Some(status), None), "{status}");
    }
}

#[tokio::test]
async fn some_statuses_are_tried_again_and_all_others_are_final() {
    for status in [408, 425, 429, 500, 501, 502, 503, 504, 511, 599] {
        let (attempt, state) = attempt(&Receiver::answering(status).await).await;
        assert_eq!((state, attempt.status), (State::Pending, Some(status)));
        assert!(attempt.next_at.is_some(), "{status}");
    }
    for status in [300, 304, 400, 401, 403, 404, 405, 409, 410, 413, 418, 422, 426, 431, 451, 600, 999] {
        let (attempt, state) = attempt(&Receiver::answering(status).await).await;
        assert_eq!((state, attempt.status, attempt.next_at), (State::Failed, Some(status), None));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_is_final() {
    let elsewhere = Receiver::answering(200).await;
    let location = format!("location: {}\r\n", elsewhere.url());
    for status in [301, 302, 303, 307, 308] {
        let location = location.clone();
        let receiver = Receiver::scripted(move |_, _| Reaction::answer(status, &location, "")).await;
        let stage = Stage::towards(&receiver).await;
        let delivery = stage.pay("pay_1").await;
        let worker = stage.worker_for(&[&receiver, &elsewhere]);
        worker.round().await.unwrap();
        assert_eq!(stage.delivery(&delivery).await.state, State::Failed);
        assert!(!stage.pass_to_next().await);
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn a_receiver_that_hangs_at_any_stage_costs_the_limit_and_no_more() {
    // A listener that nobody accepts from: the kernel takes the connection, and that is all.
    let (asleep, silent) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), Greeting::Silence);
    let in_tls = Receiver::greeting(silent).await;
    let before_head = Receiver::scripted(|_, _| Reaction::Hang).await;
    let in_head = Receiver::scripted(|_, _| Reaction::Drip(b"HTTP/1.1 200 OK\r\nx: ".to_vec(), PAUSE)).await;
    let informing = Receiver::scripted(|_, _| Reaction::Flood(b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec())).await;
    let before_accept = format!("https://{}/", asleep.local_addr().unwrap());
    for (receiver, url) in [
        (&in_tls, before_accept),
        (&in_tls, in_tls.url()),
        (&before_head, before_head.url()),
        (&in_head, in_head.url()),
        (&informing, informing.url()),
    ] {
        let stage = Stage::new().await;
        stage.configure(Realm::Live, Some(&url)).await;
        let delivery = stage.pay("pay_1").await;
        stage.worker(receiver).round().await.unwrap();
        let [attempt] = &stage.attempts(&delivery).await[..] else { panic!("one attempt") };
        assert_eq!(class(&(attempt.clone(), State::Pending)), "timeout", "{url} {attempt:?}");
        assert!(duration(attempt) >= LIMIT && duration(attempt) < LIMIT + A_SECOND, "{url} {attempt:?}");
    }
}

#[tokio::test]
async fn the_head_decides_whatever_the_body_does() {
    let head = "HTTP/1.1 200 OK\r\n";
    let bodies = [
        Reaction::Drip(format!("{head}content-length: 100000\r\n\r\nhello").into_bytes(), PAUSE),
        Reaction::Bytes(format!("{head}transfer-encoding: chunked\r\n\r\nnot a chunk").into_bytes()),
        Reaction::Flood([format!("{head}content-length: 99999999\r\n\r\n").as_bytes(), &[b'x'; 8192]].concat()),
        Reaction::Bytes(format!("{head}content-length: 100\r\n\r\nhello").into_bytes()),
    ];
    for body in bodies {
        let reaction = body.clone();
        let receiver = Receiver::scripted(move |_, _| reaction.clone()).await;
        let (attempt, state) = attempt(&receiver).await;
        assert_eq!((state, attempt.status), (State::Delivered, Some(200)));
        assert!(duration(&attempt) < LIMIT + A_SECOND);
        assert!(attempt.detail.unwrap().len() <= 1024);
    }
    let refused = b"HTTP/1.1 404 X\r\ncontent-length: 99\r\n\r\n";
    let receiver = Receiver::scripted(|_, _| Reaction::Drip(refused.to_vec(), PAUSE)).await;
    assert_eq!(attempt(&receiver).await.1, State::Failed);
}

#[tokio::test]
async fn failures_of_the_network_are_told_apart_and_tried_again() {
    for (greeting, expected) in [(Greeting::Reset, "reset"), (Greeting::Plain, "tls")] {
        assert_eq!(class(&attempt(&Receiver::greeting(greeting).await).await), expected);
    }
    let answers: [(&[u8], &str); 4] = [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "malformed"),
        (b"HTTP/1.1 two hundred\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "malformed"),
        (b"\x00\x01\x02\x03\xff\xfe\r\n\r\n", "malformed"),
    ];
    for (bytes, expected) in answers {
        let receiver = Receiver::scripted(move |_, _| Reaction::Bytes(bytes.to_vec())).await;
        assert_eq!(class(&attempt(&receiver).await), expected, "{}", String::from_utf8_lossy(bytes));
    }
    let one = format!("x-{}: y\r\n", "z".repeat(100));
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1_000_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", one.repeat(10_000));
    for head in [huge, many] {
        let receiver = Receiver::scripted(move |_, _| Reaction::Bytes(head.clone().into_bytes())).await;
        assert_eq!(class(&attempt(&receiver).await), "malformed");
    }
    assert_eq!(class(&attempt(&Receiver::scripted(|_, _| Reaction::Reset).await).await), "reset");
}

#[tokio::test]
async fn nobody_listening_is_refused_and_tried_again() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    stage.configure(Realm::Live, Some(&format!("https://{gone}/"))).await;
    let delivery = stage.pay("pay_1").await;
    stage.worker(&receiver).round().await.unwrap();
    assert_eq!(class(&(stage.attempts(&delivery).await.remove(0), State::Pending)), "refused");
}

#[tokio::test]
async fn a_certificate_of_a_stranger_or_for_another_name_is_refused() {
    let other_name = Receiver::start(Greeting::Tls, &["other.example.test"], |_, _| Reaction::status(200)).await;
    assert_eq!(class(&attempt(&other_name).await), "tls");

    let (receiver, stranger) = (Receiver::answering(200).await, Receiver::answering(200).await);
    let stage = Stage::towards(&stranger).await;
    let delivery = stage.pay("pay_1").await;
    Worker::new(stage.host.payments.webhooks.clone(), dependencies(&[&receiver])).round().await.unwrap();
    assert_eq!(class(&(stage.attempts(&delivery).await.remove(0), State::Pending)), "tls");
    assert_eq!(other_name.count() + stranger.count(), 0);
}

#[tokio::test]
async fn retry_after_makes_a_delay_longer_up_to_an_hour_and_never_shorter() {
    let cases = [
        ("60", 60),
        ("5", 10),
        ("0", 10),
        ("7200", 3600),
        ("99999999999999999999", 3600),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 10),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 10),
        ("Sun Nov  6 08:49:37 1994", 10),
        ("-5", 10),
        ("1.5", 10),
        ("", 10),
        ("inf", 10),
        ("soon", 10),
    ];
    for (value, expected) in cases {
        let header = format!("retry-after: {value}\r\n");
        let receiver = Receiver::scripted(move |_, _| Reaction::answer(503, &header, "")).await;
        assert_delay(&receiver, expected - 1..=expected + 1).await;
    }
    for (seconds, expected) in [(100, 97..=101), (9000, 3599..=3601)] {
        let receiver = Receiver::scripted(move |_, _| {
            let date = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(seconds));
            Reaction::answer(429, &format!("retry-after: {date}\r\n"), "")
        })
        .await;
        assert_delay(&receiver, expected).await;
    }
    for status in [200, 302, 400] {
        let receiver = Receiver::scripted(move |_, _| Reaction::answer(status, "retry-after: 60\r\n", "")).await;
        assert_eq!(attempt(&receiver).await.0.next_at, None, "{status}");
    }
}

#[tokio::test]
async fn what_a_receiver_says_is_kept_short_and_clean() {
    let body = format!("no\u{7}thing\u{0} to see: {}", "é".repeat(2000));
    let receiver = Receiver::scripted(move |_, _| Reaction::answer(500, "", &body)).await;
    let (attempt, _) = attempt(&receiver).await;
    let detail = attempt.detail.unwrap();
    assert!(detail.starts_with("nothing to see: é") && detail.len() <= 1024, "{detail}");
    assert!(attempt.duration_ms.is_some() && attempt.signed_at.is_some());
}
