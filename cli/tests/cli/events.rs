//! `events`, with an API that has some.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::{Asked, command, listen, ok, printed};

fn event(sequence: u64, event_type: &str, data: &Value) -> Value {
    json!({
        "sequence": sequence, "type": event_type, "resource": {"kind": "sandbox", "id": "sbx1"}, "data": data,
        "created_at": "2027-01-15T08:00:00Z",
    })
}

/// An API with these events, and what it was asked: the line, and the last event that the reader has.
fn api() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let address = listen(move |request, stream| {
        let last = request.headers.get("last-event-id").map(|id| format!(" from {id}")).unwrap_or_default();
        noted.lock().unwrap().push(format!("{}{last}", request.line));
        answer(request, stream);
    });
    (address, asked)
}

fn answer(request: &Asked, stream: &mut TcpStream) {
    let crash = json!({"error": {"code": "guest_panicked", "message": "The kernel\u{1b}[2J panicked"}});
    let page = |events: &[Value], next_after: u64, has_more: bool| {
        ok(&json!({"events": events, "next_after": next_after, "has_more": has_more}))
    };
    let said = match request.line.as_str() {
        "GET /v1/events?type=sandbox.ready&type=sandbox.crashed&resource=sbx1&after=0&limit=100" => {
            page(&[event(1, "sandbox.ready", &json!({}))], 1, true)
        }
        "GET /v1/events?type=sandbox.ready&type=sandbox.crashed&resource=sbx1&after=1&limit=100" => {
            page(&[event(7, "sandbox.crashed", &crash)], 9, false)
        }
        "GET /v1/events" => return follow(request, stream),
        unknown => panic!("{unknown}"),
    };
    let _ = stream.write_all(&said);
}

/// At first only where the reader is, then an event and half of the next, then the rest of them; and then the key is revoked.
fn follow(request: &Asked, stream: &mut TcpStream) {
    let text = |sequence, event_type| {
        let data = event(sequence, event_type, &json!({}));
        format!("event: {event_type}\nid: {sequence}\ndata: {data}\n\n")
    };
    let (first, second) = (text(41, "sandbox.created"), text(42, "sandbox.ready"));
    let said = match request.headers.get("last-event-id").map(String::as_str) {
        None => "id: 40\n: \n\n".to_owned(),
        Some("40") => format!("{first}{}", &second[..second.len() / 2]),
        Some("41") => second,
        Some(_) => {
            let body = json!({"error": "unauthorized", "message": "no such key", "request_id": "req1"}).to_string();
            let head = format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: {}\r\n", body.len());
            return drop(write!(stream, "{head}Connection: close\r\n\r\n{body}"));
        }
    };
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{said}");
}

#[test]
fn events_are_listed_with_their_reasons() {
    let (address, _) = api();
    let filter = ["events", "--type", "sandbox.ready", "--type", "sandbox.crashed", "--resource", "sbx1"];

    let text = printed(command(address, &filter).output().unwrap());

    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains("sandbox.ready") && lines[0].ends_with("sbx1"), "{text}");
    assert!(
        lines[1].trim_start().starts_with('7') && lines[1].ends_with("sbx1  The kernel\\u{1b}[2J panicked"),
        "{text}"
    );
}

#[test]
fn events_are_followed_over_connections_that_break_off_and_none_is_missed_or_doubled() {
    let (address, asked) = api();

    let output = command(address, &["--json", "events", "--follow"]).output().unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences: Vec<_> = lines.iter().filter_map(|line| line["sequence"].as_u64()).collect();
    assert_eq!(sequences, [41, 42], "{text}");
    assert_eq!((lines.last().unwrap()["error"].as_str(), output.status.code()), (Some("unauthorized"), Some(125)));
    let line = "GET /v1/events";
    let expected = ["", " from 40", " from 41", " from 42"].map(|from| format!("{line}{from}"));
    assert_eq!(*asked.lock().unwrap(), expected);
}
