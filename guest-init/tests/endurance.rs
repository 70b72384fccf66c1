//! What PID 1 holds after many processes. In a test program of its own, whose memory no other test moves.

#[path = "data_plane/support.rs"]
#[allow(dead_code, reason = "made for the tests of the data plane")]
mod support;

use serde_json::{Value, json};

use self::support::Server;

/// What is kept of ended processes is full long before.
const FIRST: usize = 1_000;
const MORE: usize = 4_000;
const MOST_GROWTH_KIB: usize = 4_096;
/// Of 100 MiB of arguments 8 MiB may be kept, beside what one request takes.
const MOST_FOR_ARGUMENTS_KIB: usize = 48 * 1_024;

#[tokio::test]
async fn ended_processes_and_their_arguments_take_bounded_memory() {
    let server = Server::start();
    let short = json!({"cmd": "true"});
    run(&server, &short, FIRST).await;
    let (tasks_before, before) = (tasks(), resident_kib());

    run(&server, &short, MORE).await;
    let (tasks_after, after_short) = (tasks(), resident_kib());
    run(&server, &json!({"cmd": "true", "args": vec!["x".repeat(100_000); 10]}), 100).await;
    let after_large = resident_kib();

    assert!(tasks_after <= tasks_before + 16, "{tasks_before} tasks, later {tasks_after}");
    assert!(after_short <= before + MOST_GROWTH_KIB, "{before} KiB, later {after_short}");
    assert!(after_large <= after_short + MOST_FOR_ARGUMENTS_KIB, "{after_short} KiB, later {after_large}");
}

async fn run(server: &Server, process: &Value, count: usize) {
    for _ in 0..count {
        let outcome = server.stream("Start", json!({"process": process}), &[]).await.outcome().await;
        assert_eq!(outcome.end["status"], "exit status 0", "{}", outcome.error);
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("there");
    line.trim().strip_suffix(" kB").and_then(|kib| kib.parse().ok()).expect("a number")
}
