//! Events as they happen.

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use futures_util::StreamExt;
use jiff::SignedDuration;
use sandpiper_api::event_retention;
use serde_json::Value;
use tower::ServiceExt;

use crate::support::{Answer, BOUND, Host};

/// A request for the events of the team of a key.
async fn ask(router: Router, key: &str, query: &str, last: Option<&str>) -> Response {
    let mut request = Request::get(format!("/v1/events{query}"))
        .header("authorization", format!("Bearer {key}"))
        .header("accept", "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

impl Host {
    async fn follow_events(&self, query: &str, last: Option<&str>) -> Events {
        Events::follow(self.router(), &self.read, query, last).await
    }
}

/// Events as they come.
pub(crate) struct Events {
    body: BodyDataStream,
    text: String,
    /// What a client would send as `Last-Event-ID`.
    last_id: Option<String>,
}

impl Events {
    /// Those of the team of a key, from now on unless the query or the last event say otherwise.
    pub(crate) async fn follow(router: Router, key: &str, query: &str, last: Option<&str>) -> Self {
        let response = ask(router, key, query, last).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Self { body: response.into_body().into_data_stream(), text: String::new(), last_id: None }
    }

    /// The next block of lines; `None` at the end.
    async fn block(&mut self) -> Option<String> {
        let next = async {
            loop {
                if let Some((block, rest)) = self.text.split_once("\n\n") {
                    let (block, rest) = (block.to_owned(), rest.to_owned());
                    self.text = rest;
                    return Some(block);
                }
                let piece = self.body.next().await?.unwrap();
                self.text.push_str(std::str::from_utf8(&piece).unwrap());
            }
        };
        let block = tokio::time::timeout(BOUND, next).await.unwrap()?;
        if let Some(id) = block.lines().find_map(|line| line.strip_prefix("id: ")) {
            self.last_id = Some(id.to_owned());
        }
        Some(block)
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            let block = self.block().await?;
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let Some(data) = field("data") else { continue };
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(event["type"], field("event").unwrap());
            assert_eq!(event["sequence"].to_string(), field("id").unwrap());
            return Some(event);
        }
    }

    pub(crate) async fn numbers(&mut self, count: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            numbers.push(self.next().await.expect("an event")["sequence"].as_u64().unwrap());
        }
        numbers
    }
}

#[tokio::test]
async fn a_stream_begins_now_and_says_where_that_is() {
    let host = Host::new().await;
    let before = host.sandbox().await;

    let mut events = host.follow_events("", None).await;
    let beginning = events.block().await.unwrap();
    assert!(beginning.contains("id: 2") && beginning.contains(':') && !beginning.contains("data"), "{beginning}");
    host.call("DELETE", &format!("/v1/sandboxes/{before}"), &host.write, None).await.expect(204);

    let event = events.next().await.unwrap();
    assert_eq!((event["type"].as_str(), event["sequence"].as_u64()), (Some("sandbox.deleted"), Some(3)));
    assert_eq!(event["resource"]["id"], before);
}

#[tokio::test]
async fn what_happens_while_nobody_is_connected_is_not_missed_and_not_doubled() {
    let host = Host::new().await;
    let mut seen = Vec::new();
    let mut last = None;
    for round in 0..4 {
        let mut events = host.follow_events("?after=0", last.as_deref()).await;
        // It breaks off before any event, in one of the rounds.
        if round != 2 {
            host.sandbox().await;
            seen.extend(events.numbers(2).await);
        } else {
            events.block().await.unwrap();
        }
        last = events.last_id.clone();
        drop(events);
        host.volume(&format!("v{round}")).await;
    }
    let mut events = host.follow_events("", last.as_deref()).await;
    seen.extend(events.numbers(4).await);
    assert_eq!(seen.len(), 10);
    assert_eq!(seen, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_filter_holds_for_what_comes() {
    let host = Host::new().await;
    let mut events = host.follow_events("?type=volume.created&after=0", None).await;
    host.sandbox().await;
    host.volume("models").await;
    assert_eq!(events.numbers(1).await, [3]);
}

#[tokio::test]
async fn what_another_process_writes_comes_too() {
    let host = Host::new().await;
    let other = host.other_process().await;
    let mut events = Events::follow(other, &host.read, "?after=0", None).await;
    host.sandbox().await;
    assert_eq!(events.numbers(2).await, [1, 2]);
}

#[tokio::test]
async fn events_of_another_team_do_not_come() {
    let host = Host::new().await;
    let mut theirs = Events::follow(host.router(), &host.foreign, "?after=0", None).await;
    host.sandbox().await;
    let body = serde_json::json!({"template": "base"});
    let foreign = host.call("POST", "/v1/sandboxes", &host.foreign, Some(body)).await.expect(201);
    let event = theirs.next().await.unwrap();
    assert_eq!((event["sequence"].as_u64(), &event["resource"]["id"]), (Some(1), &foreign["id"]));
}

#[tokio::test]
async fn a_team_follows_its_events_so_often_at_a_time() {
    let host = Host::new().await;
    let mut followed = Vec::new();
    let refused = loop {
        let response = ask(host.router(), &host.read, "", None).await;
        if response.status() != StatusCode::OK {
            break Answer::read(response).await;
        }
        followed.push(response.into_body());
    };
    assert_eq!((followed.len(), refused.header("retry-after").is_some()), (16, true));
    refused.refused(429, "rate_limited");
    // Other teams and pages are not concerned, and what nobody reads any more is one less.
    Events::follow(host.router(), &host.foreign, "", None).await;
    host.get("/v1/events").await.expect(200);
    followed.pop();
    host.follow_events("", None).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_key() {
    let host = Host::new().await;
    let mut events = host.follow_events("", None).await;
    events.block().await.unwrap();
    for key in host.app.store.keys.all().await.unwrap() {
        host.app.store.keys.revoke(&key.id, None, host.app.clock.now()).await.unwrap();
    }
    assert_eq!(events.next().await, None);
    assert_eq!(ask(host.router(), &host.read, "", None).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_stream_ends_with_its_process() {
    let host = Host::new().await;
    let mut events = host.follow_events("", None).await;
    events.block().await.unwrap();
    host.app.ending.cancel();
    assert_eq!(events.block().await, None);
}

#[tokio::test]
async fn who_comes_back_too_late_is_told() {
    let host = Host::new().await;
    host.sandbox().await;
    host.pass(SignedDuration::from_hours(24 * 31));
    event_retention::round(&host.app).await.unwrap();
    host.volume("models").await;
    let late = ask(host.router(), &host.read, "", Some("1")).await;
    Answer::read(late).await.refused(410, "events_expired");
    // Also where nothing had happened yet when it was connected.
    let late = ask(host.router(), &host.read, "?after=0", Some("0")).await;
    Answer::read(late).await.refused(410, "events_expired");
    let never = ask(host.router(), &host.read, "", Some("9")).await;
    Answer::read(never).await.blames("after");
    let wrong = ask(host.router(), &host.read, "", Some("x")).await;
    Answer::read(wrong).await.blames("Last-Event-ID");
    // From the oldest that is kept.
    assert_eq!(host.follow_events("?after=0", None).await.numbers(1).await, [3]);
}
