//! The `sandpiper` command, as a person or a script uses it.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use support::Host;

tests! {
    shared: [
        a_sandbox_is_kept_listed_used_logged_and_removed,
        files_and_folders_are_copied_both_ways_and_listed,
        a_port_is_exposed_and_listed,
        an_agent_gets_a_machine_for_its_conversation,
        a_sandbox_is_paused_resumed_checkpointed_forked_and_restored,
        a_volume_is_filled_mounted_read_and_removed,
        a_shell_has_the_volume_and_its_sandbox_goes_with_it,
        an_operator_sees_where_the_time_of_a_start_went,
        a_user_signs_in_and_sees_to_a_team,
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

async fn an_operator_sees_where_the_time_of_a_start_went() {
    let host = Host::shared();
    let id = kept(host);
    let metrics = format!("--metrics-url={}", host.metrics_url());

    let all = lines(host, &["--json", "trace", &id, "--last=100", &metrics]);
    let create = all.iter().find(|line| line.contains(r#""name":"POST /v1/sandboxes""#)).unwrap();
    let json: serde_json::Value = serde_json::from_str(create).unwrap();
    let picture = lines(host, &["trace", &id, "--last=100", &metrics]);

    let steps = json["steps"].as_array().unwrap();
    let end = |step: &serde_json::Value| step["end_us"].as_u64().unwrap_or_else(|| panic!("it goes on: {step}"));
    let whole = &steps[0];
    assert_eq!(json["sandbox"].as_str(), Some(id.as_str()));
    for by in ["api", "agent", "monitor", "guest"] {
        assert!(steps.iter().any(|step| step["by"] == by), "no step by {by}: {json}");
    }
    for step in steps {
        let start = step["start_us"].as_u64().unwrap();
        assert!(start <= end(step) && end(step) <= end(whole), "{step} is not within {whole}");
    }
    assert!(picture.len() >= steps.len() + 2 && picture[0].contains(&id), "{picture:#?}");
    assert!(picture.iter().any(|line| line.contains("gather") && line.contains('█')), "{picture:#?}");
    run(host, &["rm", &id]);
    let none = host.cli(&["trace", "sbx-nowhere", &metrics]).output().unwrap();
    assert!(!none.status.success() && text(&none.stderr).contains("There is no trace about sbx-nowhere"), "{none:?}");
}

async fn files_and_folders_are_copied_both_ways_and_listed() {
    let host = Host::shared();
    let id = kept(host);
    let scratch = tempfile::tempdir().unwrap();
    let (source, back) = (scratch.path().join("src"), scratch.path().join("back"));
    std::fs::create_dir_all(source.join("a/b")).unwrap();
    std::fs::write(source.join("a/b/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(source.join("a/b/run.sh"), Permissions::from_mode(0o750)).unwrap();
    // Links lead nowhere on the other side.
    std::os::unix::fs::symlink("/etc/shadow", source.join("link")).unwrap();

    run(host, &["cp", "-r", source.to_str().unwrap(), &format!("{id}:made/here")]);
    assert_eq!(lines(host, &["exec", &id, "--", "made/here/a/b/run.sh"]), ["ran"]);
    let listed = lines(host, &["ls", "-d", "9", &format!("{id}:made")]);
    assert!(listed.iter().any(|line| line.contains("/home/user/made/here/a/b/run.sh")), "{listed:?}");
    assert!(!listed.iter().any(|line| line.contains("link")), "{listed:?}");
    run(host, &["cp", "-r", &format!("{id}:made/here"), back.to_str().unwrap()]);
    let copied = back.join("a/b/run.sh");
    assert_eq!(std::fs::metadata(&copied).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(std::fs::read_to_string(&copied).unwrap(), "#!/bin/sh\necho ran\n");

    piped(host, &["cp", "-", &format!("{id}:piped")], b"12345");
    assert_eq!(text(&run(host, &["cp", &format!("{id}:piped"), "-"]).stdout), "12345");
    let refused = host.cli(&["cp", &format!("{id}:/etc/shadow"), scratch.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(!scratch.path().join("shadow").exists());
    run(host, &["rm", &id]);
}

async fn a_port_is_exposed_and_listed() {
    let host = Host::shared();
    let id = kept(host);

    let exposed = lines(host, &["--json", "ports", &id, "--expose", "8000", "--public"]);
    let url = serde_json::from_str::<serde_json::Value>(&exposed[0]).unwrap()["url"].as_str().unwrap().to_owned();
    let listed = lines(host, &["ports", &id]);
    assert!(listed.iter().any(|line| line.contains(&url) && line.contains("closed")), "{listed:?}");
    run(host, &["ports", &id, "--unexpose", "8000"]);
    assert!(lines(host, &["ports", &id])[0].contains("--expose"));
    assert!(lines(host, &["limits"]).iter().any(|line| line.contains("sandboxes")));
    run(host, &["rm", &id]);
}

/// The protocol by the letter: a conversation of two calls on standard input.
async fn an_agent_gets_a_machine_for_its_conversation() {
    let host = Host::shared();
    let before: Vec<String> = host.client.list("").await.unwrap().into_iter().map(|sandbox| sandbox.id).collect();
    let messages = [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":{"language":"python","code":"print(2**100)"}}}"#,
    ];

    let mut agent = host.cli(&["mcp"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = agent.stdin.take().unwrap();
    writeln!(input, "{}", messages.join("\n")).unwrap();
    let mut responses = BufReader::new(agent.stdout.take().unwrap()).lines().map(Result::unwrap);
    let response = responses.find(|line| line.contains(r#""id":2"#)).unwrap();
    // The conversation's end.
    drop(input);
    assert!(agent.wait().unwrap().success());

    assert!(response.contains("1267650600228229401496703205376"), "{response}");
    let made = host
        .client
        .list("")
        .await
        .unwrap()
        .into_iter()
        .filter(|sandbox| !before.contains(&sandbox.id) && sandbox.raw["metadata"]["made-by"] == "mcp");
    let made: Vec<_> = made.collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(matches!(made[0].state.as_str(), "stopping" | "stopped"), "{made:?}");
    run(host, &["rm", &made[0].id]);
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

async fn a_volume_is_filled_mounted_read_and_removed() {
    let host = Host::shared();
    let scratch = tempfile::tempdir().unwrap();
    let (source, back) = (scratch.path().join("src"), scratch.path().join("back"));
    std::fs::create_dir_all(source.join("a")).unwrap();
    std::fs::write(source.join("a/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(source.join("a/run.sh"), Permissions::from_mode(0o750)).unwrap();

    let made = lines(host, &["volume", "create", "of-the-cli"]);
    assert!(made.len() == 1 && made[0].starts_with("vol"), "{made:?}");
    run(host, &["volume", "cp", "-r", source.to_str().unwrap(), "of-the-cli:/tools"]);
    let script = "/data/tools/a/run.sh; echo made > /data/made";
    assert_eq!(lines(host, &["run", "--volume", "of-the-cli:/data", "--", "sh", "-c", script]), ["ran"]);
    assert_eq!(lines(host, &["volume", "cat", "of-the-cli:/made"]), ["made"]);
    piped(host, &["volume", "cp", "-", "of-the-cli:/piped"], b"12345");
    assert_eq!(text(&run(host, &["volume", "cp", "of-the-cli:/piped", "-"]).stdout), "12345");
    run(host, &["volume", "cp", "-r", "of-the-cli:/tools", back.to_str().unwrap()]);
    assert_eq!(std::fs::metadata(back.join("a/run.sh")).unwrap().permissions().mode() & 0o777, 0o750);

    let kept = run(host, &["--json", "run", "--keep", "--volume", "of-the-cli:/data", "--", "true"]);
    let created: serde_json::Value = serde_json::from_str(text(&kept.stdout).lines().next().unwrap()).unwrap();
    let id = created["sandbox"]["id"].as_str().unwrap();
    let listed = lines(host, &["volume", "ls"]);
    let is_listed = |line: &String| [&made[0], "of-the-cli", "ready", id].iter().all(|word| line.contains(*word));
    assert!(listed.iter().any(is_listed), "{listed:?}");
    let refused = host.cli(&["volume", "rm", "of-the-cli"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("volume_attached"), "{}", text(&refused.stderr));

    run(host, &["rm", id]);
    assert_eq!(lines(host, &["volume", "rm", "of-the-cli"]), made);
    let gone = host.cli(&["volume", "cat", "of-the-cli:/made"]).output().unwrap();
    assert!(!gone.status.success() && text(&gone.stderr).contains("volume ls"), "{}", text(&gone.stderr));
}

async fn a_shell_has_the_volume_and_its_sandbox_goes_with_it() {
    let host = Host::shared();
    let volume = host.volume("of-a-shell").await;
    // A terminal for it, whose other end is this pipe.
    let shell = host.cli(&["volume", "shell", &volume.name]);
    let words: Vec<&str> =
        std::iter::once(shell.get_program()).chain(shell.get_args()).map(|word| word.to_str().unwrap()).collect();
    let mut terminal = std::process::Command::new("script");
    terminal
        .args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"])
        .envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keyboard, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());

    let mut seen = String::new();
    read_until(&mut screen, &mut seen, "$ ");
    keyboard.write_all(b"pwd; echo typed > typed; exit 7\n").unwrap();
    read_until(&mut screen, &mut seen, "/volume\r\n");

    assert_eq!(terminal.wait().unwrap().code(), Some(7), "{seen}");
    assert_eq!(volume.attached_to().await, None);
    assert_eq!(lines(host, &["volume", "cat", &format!("{}:/typed", volume.name)]), ["typed"]);
}

async fn a_user_signs_in_and_sees_to_a_team() {
    let host = Host::shared();
    let folder = tempfile::tempdir().unwrap();
    // Users and teams stay: a second run has others.
    let team = sandpiper_protocol::id::generate("crew");
    let [cleo, dora] = ["cleo", "dora"].map(|name| format!("{name}@{team}.example"));
    let as_user = |who: &str, arguments: &[&str], input: &str| {
        let mut command = host.cli(arguments);
        command.env_remove("SANDPIPER_API_KEY").env("XDG_CONFIG_HOME", folder.path().join(who));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{arguments:?}: {}", text(&ended.stderr));
        text(&ended.stdout).trim().to_owned()
    };
    let invitation = host.api_program(&["team", "invite", &team, "--role", "owner", "--plan", "pro"]);
    let join = ["login", &cleo, "--invitation", invitation.trim()];
    as_user("cleo", &join, "correct horse battery\n");
    assert!(as_user("cleo", &["whoami"], "").starts_with(&format!("{cleo}, owner of the team; team cleo")));
    assert!(as_user("cleo", &["team", "ls"], "").contains(&team));
    let created = as_user("cleo", &["--team", &team, "--json", "run", "--keep", "--", "true"], "");
    let created: serde_json::Value = serde_json::from_str(created.lines().next().unwrap()).unwrap();
    let id = created["sandbox"]["id"].as_str().unwrap();
    assert_eq!(created["sandbox"]["team"], *team);
    assert!(!as_user("cleo", &["ps"], "").contains(id), "the personal team has none");
    assert_eq!(as_user("cleo", &["--team", &team, "exec", id, "--", "echo", "hi"], ""), "hi");

    let invited = as_user("cleo", &["team", "invite", &team, "--role", "viewer"], "");
    as_user("dora", &["login", &dora, "--invitation", &invited], "correct horse battery\n");
    assert!(as_user("dora", &["--team", &team, "ps"], "").contains(id));
    as_user("cleo", &["team", "set-role", &team, &dora, "member"], "");
    as_user("dora", &["--team", &team, "rm", id], "");
    assert!(as_user("cleo", &["--team", &team, "audit", "--resource", id], "").contains("DELETE /v1/sandboxes/{id}"));

    let key = as_user("cleo", &["--team", &team, "key", "create", "--name", "ci", "--read"], "");
    let with_key = host.cli(&["whoami"]).env("SANDPIPER_API_KEY", &key).output().unwrap();
    assert!(text(&with_key.stdout).contains(&format!("(read); team {team}")), "{with_key:?}");
    let listed = as_user("cleo", &["--team", &team, "--json", "key", "ls"], "");
    let listed: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    as_user("cleo", &["--team", &team, "key", "revoke", listed["id"].as_str().unwrap()], "");
    let with_key = host.cli(&["whoami"]).env("SANDPIPER_API_KEY", &key).output().unwrap();
    assert!(!with_key.status.success() && text(&with_key.stderr).contains("401"), "{with_key:?}");

    as_user("cleo", &["team", "remove", &team, &dora], "");
    as_user("cleo", &["logout"], "");
    let after =
        host.cli(&["ps"]).env_remove("SANDPIPER_API_KEY").env("XDG_CONFIG_HOME", folder.path()).output().unwrap();
    assert!(!after.status.success() && text(&after.stderr).contains("sandpiper login"), "{after:?}");
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

/// The id of a new sandbox.
fn kept(host: &Host) -> String {
    let ran = run(host, &["--json", "run", "--keep", "--", "true"]);
    let created: serde_json::Value = serde_json::from_str(text(&ran.stdout).lines().next().unwrap()).unwrap();
    created["sandbox"]["id"].as_str().unwrap().to_owned()
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

/// Reads until `seen` has these words.
fn read_until(screen: &mut impl Read, seen: &mut String, words: &str) {
    let mut piece = [0; 1024];
    while !seen.contains(words) {
        let length = screen.read(&mut piece).unwrap();
        assert!(length > 0, "it ended; on the screen was: {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}
