//! `sandpiper mcp`, as agents use it: with the official client, and by the letter of the protocol.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{api, command, real_data_plane, reaped};

/// The Python in which the official client is installed; `scripts/testing/tools` makes it.
fn python() -> Option<PathBuf> {
    let cache = std::env::var_os("SANDPIPER_CACHE").map_or_else(|| "/var/cache/sandpiper".into(), PathBuf::from);
    let python = cache.join("mcp-client/bin/python");
    if !python.exists() {
        sandpiper_skip::skipped("the MCP server with the official client", "it is not installed");
        return None;
    }
    Some(python)
}

/// What the official client prints for these calls.
async fn with_official_client(calls: &Value, server: &Command) -> Option<Vec<Value>> {
    let mut client = Command::new(python()?);
    client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/mcp_client.py")).arg(calls.to_string());
    client.arg(server.get_program()).args(server.get_args());
    client.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (status, printed, errors) = reaped(client, b"").await;
    assert_eq!(status, 0, "{errors}");
    let printed = String::from_utf8(printed).unwrap();
    Some(printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn text(result: &Value) -> &str {
    result["text"].as_str().unwrap()
}

#[tokio::test]
async fn an_agent_runs_code_and_works_with_files_through_the_official_client() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let file = scratch.path().join("folder/notes.txt");
    fs::create_dir(scratch.path().join("raw")).unwrap();
    fs::write(scratch.path().join("raw/bytes"), [0, 0xff, 1]).unwrap();
    let folder = scratch.path().to_str().unwrap();
    let calls = json!([
        ["run_code", {"language": "python", "code": "print(2**100)"}],
        ["run_command", {"command": "echo out; echo err >&2; exit 7", "cwd": "/"}],
        ["write_file", {"path": file, "content": "one\ntwo\nthree\n"}],
        ["read_file", {"path": file, "first_line": 2, "lines": 1}],
        ["read_file", {"path": format!("{folder}/raw/bytes")}],
        ["list_files", {"path": folder, "depth": 2}],
        ["search_files", {"pattern": "t(w|hr)", "path": folder, "files": "*.txt"}],
        ["read_file", {"path": "/no/such/file"}],
        ["run_command", {"command": "yes | head -c 3000000; printf 'the\\377end'"}],
    ]);

    let Some(results) = with_official_client(&calls, &command(api, &["mcp"])).await else { return };

    let tools: Vec<&str> = results[0]["tools"].as_array().unwrap().iter().map(|tool| tool.as_str().unwrap()).collect();
    assert!(tools.contains(&"run_code") && tools.contains(&"restore_checkpoint"), "{tools:?}");
    assert_eq!(text(&results[1]), "exit code 0\n--- stdout ---\n1267650600228229401496703205376\n");
    assert_eq!(text(&results[2]), "exit code 7\n--- stdout ---\nout\n\n--- stderr ---\nerr\n");
    assert_eq!(text(&results[3]), format!("14 bytes written to {}", file.display()));
    assert_eq!(text(&results[4]), "two\n");
    assert!(results[5]["is_error"] == true && text(&results[5]).contains("not text"), "{}", results[5]);
    assert!(text(&results[6]).contains("folder/notes.txt (14 bytes)"), "{}", results[6]);
    assert_eq!(text(&results[7]), format!("{0}:2:two\n{0}:3:three\n", file.display()));
    assert!(results[8]["is_error"] == true && text(&results[8]).contains("No such file"), "{}", results[8]);
    let long = text(&results[9]);
    assert!(
        long.len() < 40_000 && long.contains("bytes left out") && long.ends_with("the\u{fffd}end"),
        "{}",
        long.len()
    );
}

#[tokio::test]
async fn output_is_told_while_a_command_runs_and_its_time_is_limited() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let calls = json!([
        ["run_command", {"command": "for i in 1 2 3; do echo step $i; sleep 0.6; done"}],
        ["run_command", {"command": "echo begun; sleep 1000", "timeout": 1}],
    ]);

    let Some(results) = with_official_client(&calls, &command(api, &["mcp"])).await else { return };

    let progress = results[1]["progress"].to_string();
    assert!(progress.contains("step 2"), "{progress}");
    assert!(text(&results[2]).contains("time limit") && text(&results[2]).contains("begun"), "{}", results[2]);
}

#[tokio::test]
async fn a_machine_is_shown_forked_and_returned_to_a_checkpoint_of_the_conversation_only() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let calls = json!([
        ["serve_port", {"port": 8000, "public": true}],
        ["network", {}],
        ["restore_checkpoint", {"checkpoint": "ckp1"}],
        ["checkpoint", {"name": "before"}],
        ["restore_checkpoint", {"checkpoint": "ckp1"}],
        ["fork", {}],
        ["switch_sandbox", {"sandbox": "sbxstranger"}],
    ]);

    let Some(results) = with_official_client(&calls, &command(api, &["mcp"])).await else { return };

    assert!(text(&results[1]).starts_with("http://p8000.test\n"), "{}", results[1]);
    assert!(text(&results[2]).contains("allow_internet_access"), "{}", results[2]);
    assert!(results[3]["is_error"] == true && text(&results[3]).contains("this conversation"), "{}", results[3]);
    assert_eq!(text(&results[4]), "Checkpoint ckp1");
    assert!(text(&results[5]).contains("sbx1 is paused"), "{}", results[5]);
    assert!(text(&results[6]).contains("sbxfork"), "{}", results[6]);
    assert_eq!(results[7]["is_error"], true, "{}", results[7]);
}

#[tokio::test]
async fn what_the_network_may_be_is_fixed_by_who_starts_the_server() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let calls = json!([["network", {"allow_internet_access": true}]]);

    let Some(results) = with_official_client(&calls, &command(api, &["mcp", "--no-internet"])).await else { return };

    assert!(results[1]["is_error"] == true && text(&results[1]).contains("fixed"), "{}", results[1]);
}

#[tokio::test]
async fn the_protocol_is_spoken_in_lines_on_standard_output_and_nothing_else_is() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }});
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let call = |id: u32, name: &str, arguments: Value| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
    let run = call(2, "run_command", json!({"command": "echo hello"}));
    let unknown = call(3, "run_command", json!({"comand": "echo hello"}));
    let input = format!("{initialize}\n{initialized}\nno JSON\n{unknown}\n{run}\n");

    let (status, printed, errors) = reaped(command(api, &["mcp"]), input.as_bytes()).await;

    assert_eq!(status, 0, "{errors}");
    let printed = String::from_utf8(printed).unwrap();
    let answers: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answer = |id: u32| answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{printed}"));
    assert_eq!(answer(1)["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(answer(2)["result"]["content"][0]["text"], "exit code 0\n--- stdout ---\nhello\n");
    assert_eq!(answer(3)["error"]["code"], -32602);
}
