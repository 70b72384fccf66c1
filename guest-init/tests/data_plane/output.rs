//! What processes write, as the sandbox's log gets it.

use std::time::Duration;

use sandpiper_init::capture::Batch;
use sandpiper_protocol::guest::{OutputLine, OutputStream};
use serde_json::json;

use crate::support::{Server, soon};

impl Server {
    /// The next `count` lines that are captured.
    async fn captured(&self, count: usize) -> Vec<OutputLine> {
        let mut lines = Vec::new();
        while lines.len() < count {
            let Batch { lines: more, left_out } = soon(self.app().capture().batch()).await;
            assert_eq!(left_out, 0);
            lines.extend(more);
        }
        lines
    }
}

fn said(lines: &[OutputLine], stream: OutputStream) -> Vec<&str> {
    lines.iter().filter(|line| line.stream == stream).map(|line| line.text.as_str()).collect()
}

#[tokio::test]
async fn both_streams_are_captured_line_by_line_besides_going_to_the_client() {
    let server = Server::start();
    server.app().capture().switch(true);
    let process = json!({"cmd": "/bin/sh", "args": ["-c", "echo one; echo two; echo err >&2; printf half"]});

    let mut events = server.stream("Start", json!({"process": process, "tag": "mine"}), &[]).await;
    let pid = events.pid().await;
    let outcome = events.outcome().await;
    let lines = server.captured(4).await;

    assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_slice()), (&b"one\ntwo\nhalf"[..], &b"err\n"[..]));
    assert_eq!(said(&lines, OutputStream::Stdout), ["one", "two", "half"]);
    assert_eq!(said(&lines, OutputStream::Stderr), ["err"]);
    for line in &lines {
        assert_eq!((u64::from(line.pid), line.command.as_str(), line.tag.as_deref()), (pid, "sh", Some("mine")));
    }
}

#[tokio::test]
async fn what_nobody_reads_is_captured_too_and_a_line_that_does_not_end_is_not_waited_for() {
    let server = Server::start();
    server.app().capture().switch(true);

    let started = server.shell("printf 'no end'; sleep 1000 & echo err >&2").await;
    drop(started);
    let lines = server.captured(2).await;
    let background = server.shell("(sleep 2; echo left behind) & echo $!").await;
    drop(background);
    let later = server.captured(2).await;

    assert_eq!(said(&lines, OutputStream::Stdout), ["no end"]);
    assert_eq!(said(&lines, OutputStream::Stderr), ["err"]);
    assert_eq!(later[1].text, "left behind", "its shell has ended");
}

#[tokio::test]
async fn the_output_of_a_start_command_is_captured() {
    let server = Server::start();
    server.app().capture().switch(true);

    let running = server.app().run_start_command("echo serving").await.unwrap();
    let lines = server.captured(1).await;

    assert_eq!(running.ended().await, None);
    assert_eq!((lines[0].text.as_str(), lines[0].tag.as_deref()), ("serving", Some("start")));
}

#[tokio::test]
async fn nothing_is_captured_where_that_is_off_or_of_a_terminal() {
    let server = Server::start();
    server.shell("echo off").await.outcome().await;
    server.app().capture().switch(true);
    let process = json!({"cmd": "/bin/sh", "args": ["-c", "echo terminal"]});
    let pty = json!({"process": process, "pty": {"size": {"cols": 80, "rows": 24}}});
    server.stream("Start", pty, &[]).await.outcome().await;

    server.shell("echo on").await.outcome().await;

    assert_eq!(server.captured(1).await[0].text, "on");
}

#[tokio::test]
async fn a_flood_reaches_the_client_whole_and_the_log_in_part() {
    let server = Server::start();
    server.app().capture().switch(true);
    let lines = 50_000;

    let outcome = server.shell(&format!("yes 'a line of some length' | head -n {lines}")).await.outcome().await;

    assert_eq!(outcome.stdout.iter().filter(|byte| **byte == b'\n').count(), lines);
    let (mut told, mut left_out) = (0, 0);
    let capture = server.app().capture();
    while told + left_out < lines as u64 {
        let batch = tokio::time::timeout(Duration::from_secs(30), capture.batch()).await.unwrap();
        (told, left_out) = (told + batch.lines.len() as u64, left_out + batch.left_out);
    }
    assert_eq!(told + left_out, lines as u64);
    assert!(told > 100 && left_out > 100, "{told} {left_out}");
}
