//! The builder's program, as far as the agent can tell: it takes an order and uploads, and leaves a word on its disks.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sandpiper_protocol::builder::{Order, PROGRAM};
use sandpiper_protocol::connect;
use sandpiper_protocol::process::{ProcessInput, SendInputRequest};
use serde_json::{Value, json};

use super::{Shared, behaves, folder};

/// Where on the disks the words are.
pub(in crate::server::tests) const WORDS: u64 = 1 << 20;

/// What the program was given.
#[derive(Default)]
pub(super) struct Given {
    input: Vec<u8>,
    is_complete: bool,
    uploads: Vec<(String, usize)>,
}

/// Whether this body starts the program.
pub(super) fn is_program(order: &[u8]) -> bool {
    String::from_utf8_lossy(order).contains(PROGRAM)
}

/// Takes an upload.
pub(super) fn take_file(stream: &mut UnixStream, mut body: impl Read, request: &str, length: usize, shared: &Shared) {
    let mut content = vec![0; length];
    // First of all: closed with something unread, the connection would be reset, and the response with it.
    let is_whole = body.read_exact(&mut content).is_ok();
    if behaves("full-builder") {
        let _ = stream.write_all(b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n");
    } else if is_whole {
        let path = request.split([' ', '=']).nth(2).unwrap().to_owned();
        shared.lock().unwrap().given.uploads.push((path, length));
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    }
}

/// Takes a piece of the order, or its end.
pub(super) fn take_input(stream: &mut UnixStream, mut body: impl Read, length: usize, shared: &Shared) {
    let mut message = vec![0; length];
    if body.read_exact(&mut message).is_err() {
        return;
    }
    let mut machine = shared.lock().unwrap();
    match serde_json::from_slice::<SendInputRequest>(&message) {
        Ok(SendInputRequest { input: ProcessInput::Stdin(text), .. }) => {
            machine.given.input.extend(BASE64.decode(text).unwrap());
        }
        _ => machine.given.is_complete = true,
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
}

/// Runs it: it says its events in pieces that end anywhere.
pub(super) fn run(stream: &mut UnixStream, shared: &Shared) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut send = |event: &Value| {
        let envelope = connect::envelope(0, event.to_string().as_bytes());
        let _ = write!(stream, "{:x}\r\n", envelope.len());
        let _ = stream.write_all(&[&envelope[..], b"\r\n"].concat());
    };
    send(&json!({"event": {"start": {"pid": 7}}}));
    while !shared.lock().unwrap().given.is_complete || behaves("build-hangs") {
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_first = || File::create_new(folder().join("broken")).is_ok();
    if behaves("builders-break") || behaves("first-builder-breaks") && is_first() {
        std::process::exit(9);
    }
    if behaves("build-dies") {
        return send(&json!({"event": {"end": {"exited": false, "status": "signal: killed"}}}));
    }
    let said = respond(shared).iter().flat_map(|event| format!("{event}\n").into_bytes()).collect::<Vec<_>>();
    for piece in said.chunks(50) {
        send(&json!({"event": {"data": {"stdout": BASE64.encode(piece)}}}));
    }
    send(&json!({"event": {"end": {"exited": true, "status": "exit status 0"}}}));
}

fn respond(shared: &Shared) -> Vec<Value> {
    let mut machine = shared.lock().unwrap();
    machine.given.is_complete = false;
    let order: Order = serde_json::from_slice(&std::mem::take(&mut machine.given.input)).unwrap();
    if order.is_question {
        let is_there = behaves("builder-remembers") && order.known.contains(&image(&order));
        let mounts: Vec<_> = machine.mounts.iter().map(|mount| mount.path.as_str()).collect();
        let log = json!({"event": "log", "level": "info", "text": format!("asked with {mounts:?}")});
        return if is_there { vec![log, finished(image(&order), true)] } else { vec![json!({"event": "not_built"})] };
    }
    let disk = |slot: usize| machine.extra[slot].as_ref().unwrap();
    let read = |slot: usize, at: u64| {
        let mut word = [0; 9];
        let _ = disk(slot).read_exact_at(&mut word, at);
        String::from_utf8_lossy(&word).trim_end_matches('\0').to_owned()
    };
    let log = |text: String| json!({"event": "log", "level": "info", "text": text});
    let mounts: Vec<_> = machine.mounts.iter().map(|mount| mount.path.as_str()).collect();
    let mut events = vec![
        json!({"event": "step", "number": 1, "of": 2, "text": "FROM", "cached": false}),
        log(format!("the cache holds {:?}", read(1, WORDS))),
        log(format!("mounted {mounts:?}")),
        log(format!("uploads {:?}", machine.given.uploads)),
        log(format!("source {:?}", order.source)),
        log(format!("base settings {:?}", order.base_settings.workdir)),
    ];
    let image = image(&order);
    let is_known = order.known.contains(&image);
    if !is_known {
        disk(0).write_all_at(b"new root", WORDS).unwrap();
    }
    disk(1).write_all_at(b"results", WORDS).unwrap();
    events.push(if behaves("build-fails") {
        json!({"event": "failed", "code": "no_shell", "message": "There is no /bin/sh"})
    } else {
        finished(image, is_known)
    });
    events
}

fn finished(image: String, is_known: bool) -> Value {
    json!({"event": "finished", "image": image, "is_known": is_known, "settings": {"workdir": "/app", "env": {"A": "1"}},
           "command": "serve", "digests": {"registry.example/app": "sha256:1"}})
}

/// The same for the same source.
fn image(order: &Order) -> String {
    let mut hasher = DefaultHasher::new();
    format!("{:?}", order.source).hash(&mut hasher);
    format!("{:064x}", hasher.finish())
}
