//! Logs of sandboxes: page by page in both directions, and as events while they grow.

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use futures_util::StreamExt;
use sandpiper_protocol::agent::{LogEntry, LogProcess, LogSource};
use sandpiper_protocol::guest::OutputStream;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::agent::log_entry;
use crate::support::{BOUND, Host};

impl Host {
    /// A sandbox whose log has these entries, and the path of that.
    async fn logged(&self, entries: impl IntoIterator<Item = LogEntry>) -> (String, String) {
        let id = self.sandbox().await;
        self.agent.records().logs.insert(id.clone(), entries.into_iter().collect());
        let path = format!("/v1/sandboxes/{id}/logs");
        (id, path)
    }

    fn note(&self, id: &str, entry: LogEntry) {
        self.agent.records().logs.entry(id.to_owned()).or_default().push(entry);
    }

    async fn try_to_follow_log(&self, path: &str, last: Option<&str>) -> Response {
        let mut request = Request::get(path).header("authorization", format!("Bearer {}", self.read));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        self.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn follow_log(&self, path: &str, last: Option<&str>) -> Events {
        let response = self.try_to_follow_log(path, last).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body().into_data_stream(), text: String::new() }
    }
}

/// Events as they come.
struct Events {
    body: BodyDataStream,
    text: String,
}

impl Events {
    /// The next event, as its name, its id and what it says; `None` at the end.
    async fn next(&mut self) -> Option<(String, Option<String>, Value)> {
        let next = async {
            loop {
                if let Some((event, rest)) = self.text.split_once("\n\n") {
                    let (event, rest) = (event.to_owned(), rest.to_owned());
                    self.text = rest;
                    return Some(event);
                }
                let piece = self.body.next().await?.unwrap();
                self.text.push_str(std::str::from_utf8(&piece).unwrap());
            }
        };
        let event = tokio::time::timeout(BOUND, next).await.unwrap()?;
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let data = serde_json::from_str(field("data").unwrap()).unwrap();
        Some((field("event").unwrap().to_owned(), field("id").map(str::to_owned), data))
    }

    /// The message of the next event, which must be the entry with this sequence.
    async fn expect(&mut self, sequence: u64) -> String {
        let (name, id, data) = self.next().await.expect("an event");
        assert_eq!((name.as_str(), id, &data["sequence"]), ("log", Some(sequence.to_string()), &json!(sequence)));
        data["message"].as_str().unwrap().to_owned()
    }

    async fn expect_end(mut self, last: u64) {
        assert_eq!(self.next().await, Some(("end".to_owned(), None, json!({"last": last}))));
        assert_eq!(self.next().await, None);
    }
}

fn lines(numbers: std::ops::RangeInclusive<u64>) -> impl Iterator<Item = LogEntry> {
    numbers.map(|number| log_entry(number, &format!("line {number}")))
}

fn sequences(page: &Value) -> Vec<u64> {
    page["entries"].as_array().unwrap().iter().map(|entry| entry["sequence"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_log_can_be_read_after_the_end_until_the_host_forgets_it() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let path = format!("/v1/sandboxes/{id}/logs");
    host.call("DELETE", &format!("/v1/sandboxes/{id}"), &host.write, None).await.expect(204);

    let log = host.get(&path).await.expect(200);

    assert_eq!(log["entries"][0]["source"], "host");
    assert_eq!(log["entries"][0]["message"], "started");
    host.agent.records().forgotten_logs.push(id);
    host.get(&path).await.refused(404, "not_found");
    host.get("/v1/sandboxes/sbx0000000000000000000000/logs").await.refused(404, "not_found");
}

#[tokio::test]
async fn pages_go_forwards_from_a_cursor_and_have_every_entry_once() {
    let host = Host::new().await;
    let (id, path) = host.logged(lines(3..=7)).await;

    let first = host.get(&format!("{path}?limit=2")).await.expect(200);
    assert_eq!((sequences(&first), &first["truncated"]), (vec![3, 4], &json!(true)));
    let token = first["next_token"].as_str().unwrap();
    let second = host.get(&format!("{path}?limit=2&next_token={token}")).await.expect(200);
    assert_eq!((sequences(&second), &second["truncated"]), (vec![5, 6], &json!(false)));
    let cursor = second["next_cursor"].as_u64().unwrap();
    let last = host.get(&format!("{path}?cursor={cursor}")).await.expect(200);
    assert_eq!((sequences(&last), last.get("next_token"), &last["next_cursor"]), (vec![7], None, &json!(7)));

    let none_yet = host.get(&format!("{path}?cursor=7")).await.expect(200);
    assert_eq!((sequences(&none_yet), &none_yet["next_cursor"]), (vec![], &json!(7)));
    host.note(&id, log_entry(1_000_000, "of the next agent"));
    assert_eq!(sequences(&host.get(&format!("{path}?cursor=7")).await.expect(200)), [1_000_000]);
}

#[tokio::test]
async fn the_newest_come_first_where_that_is_asked_for() {
    let host = Host::new().await;
    let (_, path) = host.logged(lines(1..=5)).await;

    let newest = host.get(&format!("{path}?order=desc&limit=3")).await.expect(200);
    assert_eq!((sequences(&newest), &newest["next_cursor"]), (vec![5, 4, 3], &json!(5)));
    let token = newest["next_token"].as_str().unwrap();
    let rest = host.get(&format!("{path}?order=desc&next_token={token}")).await.expect(200);
    assert_eq!((sequences(&rest), rest.get("next_token")), (vec![2, 1], None));
    assert_eq!(sequences(&host.get(&format!("{path}?order=desc&cursor=3")).await.expect(200)), [2, 1]);

    host.get(&format!("{path}?next_token={token}")).await.blames("next_token");
    host.get(&format!("{path}?order=newest")).await.blames("order");
    host.get(&format!("{path}?cursor=-1")).await.blames("cursor");
    host.get(&format!("{path}?follow=1")).await.blames("follow");
    host.get(&format!("{path}?follow=true&order=desc")).await.blames("order");
}

#[tokio::test]
async fn a_log_is_followed_from_where_the_reader_was_until_the_sandbox_has_ended() {
    let host = Host::new().await;
    let (id, path) = host.logged(lines(1..=2)).await;
    let mut events = host.follow_log(&format!("{path}?follow=true"), None).await;
    assert_eq!([events.expect(1).await, events.expect(2).await], ["line 1", "line 2"]);
    host.note(&id, log_entry(3, "line 3"));
    assert_eq!(events.expect(3).await, "line 3");

    let mut later = host.follow_log(&format!("{path}?follow=true&cursor=1"), Some("2")).await;
    assert_eq!(later.expect(3).await, "line 3", "what was read is more than what was asked for first");
    host.note(&id, log_entry(4, "deleted: requested"));
    host.call("DELETE", &format!("/v1/sandboxes/{id}"), &host.write, None).await.expect(204);

    for mut events in [events, later] {
        assert_eq!(events.expect(4).await, "deleted: requested");
        events.expect_end(4).await;
    }
    host.follow_log(&format!("{path}?follow=true"), Some("4")).await.expect_end(4).await;
    host.agent.records().forgotten_logs.push(id);
    assert_eq!(host.try_to_follow_log(&format!("{path}?follow=true"), None).await.status(), StatusCode::NOT_FOUND);
}

/// A line that a process wrote.
fn output(sequence: u64, text: &str) -> LogEntry {
    let process = LogProcess {
        pid: 7,
        command: "node".into(),
        tag: Some("start".into()),
        stream: OutputStream::Stderr,
        cut: true,
    };
    LogEntry { source: LogSource::Process, process: Some(process), ..log_entry(sequence, text) }
}

#[tokio::test]
async fn what_processes_wrote_is_told_from_everything_else_and_read_alone() {
    let host = Host::new().await;
    let (_, path) =
        host.logged([log_entry(1, "ready"), output(2, "one"), log_entry(3, "paused"), output(4, "two")]).await;

    let all = host.get(&path).await.expect(200);
    assert_eq!((sequences(&all), all["entries"][0].get("process")), (vec![1, 2, 3, 4], None));
    let process = json!({"pid": 7, "command": "node", "tag": "start", "stream": "stderr", "cut": true});
    assert_eq!((&all["entries"][1]["source"], &all["entries"][1]["process"]), (&json!("process"), &process));

    let page = host.get(&format!("{path}?source=process&limit=1")).await.expect(200);
    assert_eq!(sequences(&page), [2]);
    let token = page["next_token"].as_str().unwrap();
    let rest = host.get(&format!("{path}?source=process&next_token={token}")).await.expect(200);
    assert_eq!((sequences(&rest), rest.get("next_token")), (vec![4], None));
    assert_eq!(sequences(&host.get(&format!("{path}?source=host&order=desc")).await.expect(200)), [3, 1]);
    host.get(&format!("{path}?source=host&next_token={token}")).await.blames("next_token");
    host.get(&format!("{path}?source=system")).await.blames("source");
    let sdk = host.sdk("GET", &path.replace("/v1/", "/v2/"), None).await.expect(200);
    assert_eq!(sdk["logs"][1]["fields"], json!({"source": "process", "stream": "stderr"}));
}

#[tokio::test]
async fn one_source_is_followed_by_itself() {
    let host = Host::new().await;
    let (id, path) = host.logged([log_entry(1, "ready"), output(2, "one"), log_entry(3, "noise")]).await;
    let mut events = host.follow_log(&format!("{path}?follow=true&source=process"), None).await;
    assert_eq!(events.expect(2).await, "one");
    host.note(&id, log_entry(4, "noise"));
    host.note(&id, output(5, "two"));
    assert_eq!(events.expect(5).await, "two");
    host.call("DELETE", &format!("/v1/sandboxes/{id}"), &host.write, None).await.expect(204);
    events.expect_end(5).await;
}

#[tokio::test]
async fn a_reader_for_whom_entries_may_be_missing_is_told_so() {
    let host = Host::new().await;
    let (_, path) = host.logged(lines(50..=51)).await;
    let mut events = host.follow_log(&format!("{path}?follow=true"), Some("7")).await;
    assert_eq!(events.next().await, Some(("truncated".to_owned(), None, json!({"after": 7}))));
    assert_eq!(events.expect(50).await, "line 50");
}

#[tokio::test]
async fn a_follower_whose_key_is_revoked_reads_no_more() {
    let host = Host::new().await;
    let (_, path) = host.logged(lines(1..=1)).await;
    let mut events = host.follow_log(&format!("{path}?follow=true"), None).await;
    events.expect(1).await;

    for key in host.app.store.keys.all().await.unwrap() {
        host.app.store.keys.revoke(&key.id, None, host.app.clock.now()).await.unwrap();
    }

    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_team_follows_so_many_logs_at_a_time() {
    let host = Host::new().await;
    let (_, path) = host.logged(lines(1..=1)).await;
    let follow = format!("{path}?follow=true");
    let mut followed = Vec::new();
    let refused = loop {
        let response = host.try_to_follow_log(&follow, None).await;
        if response.status() != StatusCode::OK {
            break response.status();
        }
        followed.push(response.into_body());
    };

    assert_eq!((followed.len(), refused), (32, StatusCode::TOO_MANY_REQUESTS));
    // Pages are read all the same, and what nobody reads any more is one less.
    host.get(&path).await.expect(200);
    followed.pop();
    host.follow_log(&follow, None).await;
}

#[tokio::test]
async fn the_sdks_read_the_same_log_by_time_and_text() {
    let host = Host::new().await;
    let (id, _) = host.logged(lines(1..=4)).await;
    for (entry, ms) in host.agent.records().logs.get_mut(&id).unwrap().iter_mut().zip(1_i64..) {
        entry.time = jiff::Timestamp::from_millisecond(ms).unwrap();
    }
    let messages = async |query: &str| {
        let logs = host.sdk("GET", &format!("/v2/sandboxes/{id}/logs?{query}"), None).await.expect(200);
        let entries = logs["logs"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };

    assert_eq!(messages("cursor=3").await, ["line 3", "line 4"]);
    assert_eq!(messages("cursor=3&direction=backward&limit=2").await, ["line 3", "line 2"]);
    assert_eq!(messages("search=ne%202").await, ["line 2"]);
    assert!(messages("level=error").await.is_empty());
    let old = host.sdk("GET", &format!("/sandboxes/{id}/logs?start=4"), None).await.expect(200);
    assert_eq!(
        (&old["logs"][0]["line"], &old["logEntries"][0]["fields"]["source"]),
        (&json!("line 4"), &json!("host"))
    );
}
