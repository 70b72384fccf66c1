//! Captured output: what processes write, in the log of a sandbox that asks for it.

use sandpiper::client::{CreateSandbox, LogEntry};
use serde_json::Value;
use support::{Host, Sandbox, small, wait_for};

tests! {
    shared: [
        what_processes_write_is_in_the_log_through_a_pause_and_of_a_fork,
        a_flood_reaches_its_client_whole_and_the_log_says_what_it_left_out,
        output_is_captured_and_shown_from_the_command_line,
        nothing_is_captured_that_nobody_asked_for,
    ],
    alone: [],
}

/// A sandbox whose output is captured.
async fn captured() -> Sandbox {
    Host::shared().sandbox_with(&CreateSandbox { capture_output: true, ..small() }).await
}

/// The lines of the sandbox's processes, once one of them is `text`.
async fn lines_with(id: &str, text: &str) -> Vec<LogEntry> {
    wait_for(&format!("{text:?} is in the log"), || async {
        let lines = Host::shared().client.logs(id, Some("process")).await.unwrap();
        lines.iter().any(|entry| entry.message == text).then_some(lines)
    })
    .await
}

fn stream_of<'e>(lines: &'e [LogEntry], text: &str) -> &'e str {
    let line = lines.iter().find(|entry| entry.message == text).unwrap_or_else(|| panic!("no {text:?} in {lines:?}"));
    &line.process.as_ref().expect("it is a process's").stream
}

async fn what_processes_write_is_in_the_log_through_a_pause_and_of_a_fork() {
    let mut sandbox = captured().await;
    assert_eq!(sandbox.out("echo to stdout; echo to stderr >&2; printf 'no end'").await, "to stdout\nno end");
    let lines = lines_with(&sandbox.id, "no end").await;
    assert_eq!((stream_of(&lines, "to stdout"), stream_of(&lines, "to stderr")), ("stdout", "stderr"));
    assert!(
        lines.iter().all(|line| line.process.as_ref().is_some_and(|process| process.command == "bash")),
        "{lines:?}"
    );
    // One that nobody listens to.
    sandbox.out("setsid sh -c 'while sleep 0.2; do echo tick; done' </dev/null & true").await;
    lines_with(&sandbox.id, "tick").await;

    sandbox.pause_and_resume().await;
    sandbox.out("echo after the pause").await;
    lines_with(&sandbox.id, "after the pause").await;
    let count = Host::shared().client.logs(&sandbox.id, Some("process")).await.unwrap().len();
    wait_for("it ticks on", || async {
        let lines = Host::shared().client.logs(&sandbox.id, Some("process")).await.unwrap();
        (lines.len() > count && lines.last()?.message == "tick").then_some(())
    })
    .await;

    let mut forks = sandbox.fork(1).await.unwrap();
    let fork = forks.remove(0);
    fork.out("echo of the fork").await;
    let of_fork = lines_with(&fork.id, "of the fork").await;
    assert!(!of_fork.iter().any(|line| line.message == "after the pause"), "{of_fork:?}");
    let shown = Host::shared().client.show(&fork.id).await.unwrap();
    assert_eq!(shown.raw["capture_output"], true);
    let own = Host::shared().client.logs(&sandbox.id, None).await.unwrap();
    assert!(!own.iter().any(|line| line.message == "of the fork"));
    assert!(own.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "{own:?}");
}

async fn a_flood_reaches_its_client_whole_and_the_log_says_what_it_left_out() {
    let sandbox = captured().await;
    let lines = 200_000;

    let output = sandbox.sh(&format!("yes 'a line that is of no interest' | head -n {lines}; echo done >&2")).await;

    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), lines);
    let said = wait_for("the log says what it left out", || async {
        let entries = Host::shared().client.last_logs(&sandbox.id, Some("process"), 5000).await.unwrap();
        let said: Vec<_> = entries.into_iter().filter(|entry| entry.process.is_none()).collect();
        (!said.is_empty()).then_some(said)
    })
    .await;
    assert!(said.iter().all(|entry| entry.message.contains("lines were left out")), "{said:?}");
    let host = Host::shared().client.logs(&sandbox.id, Some("host")).await.unwrap();
    assert!(host.iter().any(|entry| entry.message == "ready"), "{host:?}");
    assert_eq!(sandbox.out("echo still here").await, "still here\n");
}

async fn output_is_captured_and_shown_from_the_command_line() {
    let host = Host::shared();
    let ran = host.cli(&["--json", "run", "--keep", "--capture-output", "--", "sh", "-c", "echo shown >&2"]).output();
    let ran = ran.unwrap();
    let created: Value = serde_json::from_slice(ran.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    let id = created["sandbox"]["id"].as_str().unwrap();
    lines_with(id, "shown").await;

    let all = host.cli(&["logs", id]).output().unwrap();
    let of_processes = host.cli(&["logs", "--source", "process", id]).output().unwrap();

    let (all, of_processes) = (support::text(&all.stdout), support::text(&of_processes.stdout));
    assert!(all.lines().any(|line| line.contains(" stderr  sh[") && line.ends_with("]: shown")), "{all}");
    assert!(all.contains(" host    ready") && !of_processes.contains(" host "), "{all} {of_processes}");
    host.client.delete(id).await.unwrap();
}

async fn nothing_is_captured_that_nobody_asked_for() {
    let sandbox = Host::shared().sandbox().await;
    sandbox.out("echo quiet").await;
    assert!(Host::shared().client.logs(&sandbox.id, Some("process")).await.unwrap().is_empty());
    let shown = Host::shared().client.show(&sandbox.id).await.unwrap();
    assert_eq!(shown.raw["capture_output"], false);
}
