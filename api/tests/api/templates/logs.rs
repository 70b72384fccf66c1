//! Logs of builds: page by page, and as events while a build goes on.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{BOUND, Host};

impl Host {
    /// A request for events of a build's log.
    async fn follow(&self, version: &str, last: Option<&str>) -> Events {
        let response = self.try_to_follow(version, last).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body().into_data_stream(), text: String::new() }
    }

    async fn try_to_follow(&self, version: &str, last: Option<&str>) -> Response {
        let mut request = Request::get(format!("/v1/templates/node/versions/{version}/logs"))
            .header("authorization", format!("Bearer {}", self.read))
            .header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        self.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }
}

/// Events as they come.
struct Events {
    body: BodyDataStream,
    text: String,
}

impl Events {
    /// The next event's lines; `None` at the end.
    async fn next(&mut self) -> Option<String> {
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
        tokio::time::timeout(BOUND, next).await.unwrap()
    }

    /// The next event, which must have this name and id.
    async fn expect(&mut self, name: &str, id: Option<&str>) -> Value {
        let event = self.next().await.expect("an event");
        let field = |field: &str| event.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
        assert_eq!((field("event"), field("id")), (Some(name), id), "{event}");
        serde_json::from_str(field("data").unwrap()).unwrap()
    }
}

#[tokio::test]
async fn a_team_follows_so_many_logs_at_a_time() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    let mut followed = Vec::new();
    let refused = loop {
        let response = host.try_to_follow(&id, None).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        followed.push(response.into_body());
    };

    assert_eq!((followed.len(), refused.status()), (32, StatusCode::TOO_MANY_REQUESTS));
    // Pages are read all the same, and what nobody reads any more is one less.
    host.get(&format!("/v1/templates/node/versions/{id}/logs")).await.expect(200);
    followed.pop();
    host.follow(&id, None).await;
}

#[tokio::test]
async fn a_log_is_read_page_by_page_while_the_build_goes_on() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    let path = format!("/v1/templates/node/versions/{id}/logs");
    for text in ["one", "two", "three"] {
        host.agent.print(&id, text);
    }
    let first = host.get(&format!("{path}?limit=2")).await.expect(200);
    assert_eq!((&first["entries"][1]["text"], &first["entries"][1]["number"]), (&json!("two"), &json!(2)));
    assert_eq!((&first["entries"][0]["level"], &first["entries"][0]["step"]), (&json!("info"), &json!(1)));
    let next = |page: &Value| format!("{path}?limit=2&next_token={}", page["next_token"].as_str().unwrap());
    let second = host.get(&next(&first)).await.expect(200);
    assert_eq!(second["entries"].as_array().unwrap().len(), 1);
    let third = host.get(&next(&second)).await.expect(200);
    assert_eq!((&third["entries"], third["next_token"].is_string()), (&json!([]), true), "the build goes on");

    host.agent.print(&id, "four");
    host.agent.finish_build(&id);
    host.sync().await;

    let last = host.get(&next(&third)).await.expect(200);
    assert_eq!((&last["entries"][0]["text"], last.get("next_token")), (&json!("four"), None));
    assert_eq!(last["state"], "ready");
    assert_eq!(host.show_version("node", &id).await["log_end"], 4);
}

#[tokio::test]
async fn a_log_is_followed_and_taken_up_again() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    host.agent.print(&id, "one");
    let mut events = host.follow(&id, None).await;
    assert_eq!(events.expect("log", Some("1")).await["text"], "one");
    host.agent.print(&id, "two");
    assert_eq!(events.expect("log", Some("2")).await["text"], "two");

    let mut again = host.follow(&id, Some("1")).await;
    assert_eq!(again.expect("log", Some("2")).await["text"], "two");

    host.agent.fail_build(&id, "step_failed");
    host.sync().await;
    for one in [&mut events, &mut again] {
        let end = one.expect("end", None).await;
        assert_eq!((&end["state"], &end["error"]["code"]), (&json!("failed"), &json!("step_failed")));
        assert_eq!(one.next().await, None);
    }
    host.get(&format!("/v1/templates/node/versions/{id}/logs?next_token=x")).await.blames("next_token");
}

#[tokio::test]
async fn a_log_goes_on_when_the_agent_was_away() {
    let mut host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    host.agent.print(&id, "one");
    let mut events = host.follow(&id, None).await;
    events.expect("log", Some("1")).await;
    host.agent.stop();
    assert!(tokio::time::timeout(Duration::from_millis(700), events.next()).await.is_err(), "it waits");
    host.agent.resume();
    host.agent.print(&id, "two");
    events.expect("log", Some("2")).await;
}

#[tokio::test]
async fn a_log_is_not_followed_beyond_the_end_of_the_process() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    host.agent.print(&id, "one");
    let mut events = host.follow(&id, None).await;
    events.expect("log", Some("1")).await;

    host.app.ending.cancel();

    assert_eq!(events.next().await, None, "and no `end`, so that the reader goes on elsewhere");
}
