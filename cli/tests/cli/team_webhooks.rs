//! `sandpiper webhook create` and its neighbours, against an API that has one answer.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{command, listen, ok, printed};

fn webhook() -> Value {
    json!({"id": "whk1", "name": "on call", "url": "https://hooks.example.com/", "types": ["sandbox.crashed"],
           "enabled": true, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"})
}

fn delivery() -> Value {
    json!({"id": "dlv_1", "webhook": "whk1", "state": "failed", "trigger": "event", "event_sequence": 42,
           "event_type": "sandbox.crashed", "redelivery_of": null, "attempts": 1, "created_at": "2026-01-01T00:00:00Z",
           "next_attempt_at": null, "ended_at": "2026-01-01T00:00:00Z", "status": 410, "error": null})
}

/// What is printed where the API is asked this, with this body, and responds so.
fn run(arguments: &[&str], expected: &'static str, sent: Value, response: Value) -> String {
    let api = listen(move |asked, stream| {
        assert_eq!((asked.line.as_str(), &asked.body), (expected, &sent));
        let _ = stream.write_all(&ok(&response));
    });
    printed(command(api, arguments).output().unwrap())
}

#[test]
fn a_webhook_is_made_and_its_secret_printed() {
    let mut made = webhook();
    made["secret"] = json!("whsec_c2VjcmV0");
    let arguments =
        ["webhook", "create", "https://hooks.example.com/", "--name", "on call", "--type", "sandbox.crashed"];
    let sent = json!({"url": "https://hooks.example.com/", "name": "on call", "types": ["sandbox.crashed"]});

    assert_eq!(run(&arguments, "POST /v1/webhooks", sent.clone(), made.clone()), "whsec_c2VjcmV0\n");

    let as_json = [&["--json"], &arguments[..]].concat();
    assert_eq!(serde_json::from_str::<Value>(&run(&as_json, "POST /v1/webhooks", sent, made.clone())).unwrap(), made);
    let rotated = run(&["webhook", "rotate", "whk1"], "POST /v1/webhooks/whk1/secret", Value::Null, made);
    assert_eq!(rotated, "whsec_c2VjcmV0\n");
}

#[test]
fn what_is_to_change_is_sent_and_nothing_else() {
    let path = "PATCH /v1/webhooks/whk1";
    let changes: [(&[&str], Value); 4] = [
        (&["--disable"], json!({"enabled": false})),
        (&["--enable", "--name", "nights"], json!({"enabled": true, "name": "nights"})),
        (&["--type", "volume.lost"], json!({"types": ["volume.lost"]})),
        (&["--all-types", "--to", "https://a.example/"], json!({"types": [], "url": "https://a.example/"})),
    ];
    for (options, sent) in changes {
        let arguments = [&["webhook", "change", "whk1"], options].concat();
        let table = run(&arguments, path, sent, webhook());
        assert!(table.contains("sandbox.crashed") && table.contains("whk1"), "{table}");
    }
}

#[test]
fn deliveries_are_listed_shown_and_sent_again() {
    let list = json!({"deliveries": [delivery()]});
    let asked = "GET /v1/webhooks/whk1/deliveries?limit=20&state=failed";
    let table = run(&["webhook", "deliveries", "whk1", "--state", "failed"], asked, Value::Null, list);
    let row: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(row, ["dlv_1", "42", "sandbox.crashed", "failed", "410", "1", "2026-01-01T00:00:00Z"]);

    let mut details = delivery();
    details["body"] = json!({"sequence": 42});
    details["log"] = json!([{"number": 1, "started_at": "2026-01-01T00:00:00Z", "duration_ms": 7, "status": 410,
                             "error": null, "detail": "gone\u{1b}[2J"}]);
    let asked = "GET /v1/webhooks/whk1/deliveries/dlv_1";
    let shown = run(&["webhook", "delivery", "whk1", "dlv_1"], asked, Value::Null, details);
    assert!(shown.contains(r#"{"sequence":42}"#) && shown.contains(r"gone\u{1b}[2J"), "{shown}");

    let asked = "POST /v1/webhooks/whk1/deliveries/dlv_1/redeliver";
    assert_eq!(run(&["webhook", "redeliver", "whk1", "dlv_1"], asked, Value::Null, delivery()), "dlv_1\n");
    let asked = "POST /v1/webhooks/whk1/test";
    assert_eq!(run(&["webhook", "test", "whk1"], asked, Value::Null, delivery()), "dlv_1\n");
}
