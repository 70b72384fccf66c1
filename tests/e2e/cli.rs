//! The `sandpiper` command, as a person or a script uses it.

use std::io::Write;
use std::process::{Output, Stdio};

use support::Host;

tests! {
    shared: [
        a_sandbox_is_kept_listed_used_logged_and_removed,
        a_sandbox_is_paused_resumed_checkpointed_forked_and_restored,
        errors_say_what_is_wrong_and_have_their_own_exit_status,
    ],
    alone: [
        run_passes_streams_and_exit_status_through_and_destroys_the_sandbox,
    ],
}

async fn run_passes_streams_and_exit_status_through_and_destroys_the_sandbox() {
    let host = Host::shared();
    let before = host.client.list("").await.unwrap().len();

    let ran = host.cli(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).output().unwrap();

    assert_eq!((text(&ran.stdout), text(&ran.stderr), ran.status.code()), ("out\n", "err\n", Some(7)));
    assert_eq!(host.client.list("").await.unwrap().len(), before);
}

async fn a_sandbox_is_kept_listed_used_logged_and_removed() {
    let host = Host::shared();

    let ran = run(host, &["--json", "run", "--keep", "--", "true"]);
    let created: serde_json::Value = serde_json::from_str(text(&ran.stdout).lines().next().unwrap()).unwrap();
    let id = created["sandbox"]["id"].as_str().unwrap();

    assert!(text(&run(host, &["ps"]).stdout).contains(id));
    assert_eq!(piped(host, &["exec", "-i", id, "--", "sh", "-c", "wc -c"], b"12345"), "5\n");
    assert!(text(&run(host, &["logs", id]).stdout).contains("host"));
    assert_eq!(text(&run(host, &["rm", id]).stdout), format!("{id}\n"));
    assert!(!text(&run(host, &["ps", "--all"]).stdout).contains(id));
}

async fn a_sandbox_is_paused_resumed_checkpointed_forked_and_restored() {
    let host = Host::shared();
    let ran = run(host, &["--json", "run", "--keep", "--", "sh", "-c", "echo kept > kept"]);
    let created: serde_json::Value = serde_json::from_str(text(&ran.stdout).lines().next().unwrap()).unwrap();
    let id = created["sandbox"]["id"].as_str().unwrap();

    assert_eq!(lines(host, &["pause", id]), [id]);
    let running = lines(host, &["ps"]);
    assert!(!running.iter().any(|line| line.contains(id)), "{running:?}");
    let all = lines(host, &["ps", "--all"]);
    assert!(all.iter().any(|line| line.contains(id) && line.contains("stopped")), "{all:?}");
    assert_eq!(lines(host, &["resume", "--timeout", "600", id]), [id]);
    assert_eq!(lines(host, &["exec", id, "--", "cat", "kept"]), ["kept"]);

    let name = "before-the-fork";
    let taken = lines(host, &["checkpoint", "create", id, "--name", name, "--memory"]);
    assert!(taken.len() == 1 && taken[0].starts_with("ckp"), "{taken:?}");
    let listed = lines(host, &["checkpoint", "ls", id]);
    let is_listed = |line: &String| [&taken[0], name, "disk, memory"].iter().all(|word| line.contains(*word));
    assert!(listed.iter().any(is_listed), "{listed:?}");
    let restored = lines(host, &["checkpoint", "restore", name]);
    assert_eq!(lines(host, &["exec", &restored[0], "--", "cat", "kept"]), ["kept"]);

    let forks = lines(host, &["fork", "-n", "2", id]);
    assert_eq!(forks.len(), 2, "{forks:?}");
    for fork in &forks {
        assert_eq!(lines(host, &["exec", fork, "--", "sh", "-c", "cat kept; hostname"]), ["kept", fork.as_str()]);
    }

    assert_eq!(lines(host, &["checkpoint", "rm", name]), taken);
    assert_eq!(lines(host, &["rm", id, &restored[0], &forks[0], &forks[1]]).len(), 4);
    let gone = host.cli(&["checkpoint", "restore", name]).output().unwrap();
    assert!(!gone.status.success() && text(&gone.stderr).contains("checkpoint ls"), "{}", text(&gone.stderr));
}

async fn errors_say_what_is_wrong_and_have_their_own_exit_status() {
    let host = Host::shared();

    let missing = host.cli(&["exec", "sbx0000000000000000000000", "--", "true"]).output().unwrap();
    let unreachable = host.cli(&["--url", "http://127.0.0.1:1", "ps"]).output().unwrap();
    let json = host.cli(&["--json", "rm", "sbx0000000000000000000000"]).output().unwrap();

    assert_eq!(missing.status.code(), Some(125));
    assert!(text(&missing.stderr).contains("not_found"), "{}", text(&missing.stderr));
    assert!(text(&unreachable.stderr).contains("sandpiper up"), "{}", text(&unreachable.stderr));
    assert!(text(&json.stdout).contains(r#""error":"not_found""#), "{}", text(&json.stdout));
}

fn run(host: &Host, arguments: &[&str]) -> Output {
    let output = host.cli(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    output
}

fn lines(host: &Host, arguments: &[&str]) -> Vec<String> {
    text(&run(host, arguments).stdout).lines().map(str::to_owned).collect()
}

fn piped(host: &Host, arguments: &[&str], input: &[u8]) -> String {
    let mut child = host.cli(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    text(&child.wait_with_output().unwrap().stdout).to_owned()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}
