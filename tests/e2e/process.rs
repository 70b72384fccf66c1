//! Processes: streams, exit codes, signals, terminals.

use std::time::Duration;

use sandpiper::client::{Command, Stdin};
use sandpiper_protocol::process::{DataEvent, ProcessEvent, Signal};
use support::{Host, eventually, shell};

tests! {
    shared: [
        python_runs_and_both_streams_and_the_exit_code_come_back,
        a_command_runs_as_the_user_in_the_folder_and_with_the_environment_it_asks_for,
        a_missing_folder_or_user_is_refused_and_says_so,
        ten_mebibytes_go_through_a_process_unchanged,
        a_client_that_attaches_late_gets_the_output_and_the_end,
        a_signal_reaches_the_whole_process_group,
        a_process_ends_at_the_deadline_its_client_set,
        a_terminal_has_the_size_it_was_given_and_can_be_resized,
        what_the_guest_does_not_offer_is_unimplemented,
    ],
    alone: [],
}

async fn python_runs_and_both_streams_and_the_exit_code_come_back() {
    let sandbox = Host::shared().sandbox().await;

    let output = sandbox
        .data_plane
        .run(&Command {
            program: "python3".into(),
            arguments: vec![
                "-c".into(),
                "import sys; print(6 * 7); print('oops', file=sys.stderr); sys.exit(3)".into(),
            ],
            ..Command::default()
        })
        .await
        .unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "oops\n");
    assert_eq!((output.end.exit_code, output.end.exited), (3, true));
}

async fn a_command_runs_as_the_user_in_the_folder_and_with_the_environment_it_asks_for() {
    let sandbox = Host::shared().sandbox().await;

    let default = sandbox.sh("id -un; pwd; sudo -n id -un; hostname").await;
    let mut command = shell("id -un; pwd; echo $COLOUR", Some("root"));
    command.cwd = Some("/etc".into());
    command.envs.insert("COLOUR".into(), "teal".into());
    let root = sandbox.data_plane.run(&command).await.unwrap();

    let expected = format!("user\n/home/user\nroot\n{}\n", sandbox.id);
    assert_eq!(String::from_utf8_lossy(&default.stdout), expected);
    assert_eq!(String::from_utf8_lossy(&root.stdout), "root\n/etc\nteal\n");
}

async fn a_missing_folder_or_user_is_refused_and_says_so() {
    let sandbox = Host::shared().sandbox().await;

    let missing = sandbox.data_plane.run(&Command { cwd: Some("/nowhere".into()), ..shell("true", None) }).await;
    let nobody = sandbox.data_plane.run(&shell("true", Some("nosuchuser"))).await;

    assert_eq!(missing.unwrap_err().code(), Some("invalid_argument"));
    assert_eq!(nobody.unwrap_err().code(), Some("unauthenticated"));
}

async fn ten_mebibytes_go_through_a_process_unchanged() {
    let sandbox = Host::shared().sandbox().await;
    let sent = pattern(10 << 20);
    let stream = sandbox.data_plane.start(&Command { stdin: Stdin::Open, ..shell("exec cat", None) }).await.unwrap();
    let pid = stream.pid();

    let input = async {
        sandbox.data_plane.send_input(pid, &sent).await.unwrap();
        sandbox.data_plane.close_stdin(pid).await.unwrap();
    };
    let ((), output) = tokio::join!(input, stream.output());

    let output = output.unwrap();
    assert_eq!(output.stdout.len(), sent.len());
    assert!(output.stdout == sent, "the bytes differ");
    assert_eq!(output.end.exit_code, 0);
}

async fn a_client_that_attaches_late_gets_the_output_and_the_end() {
    let sandbox = Host::shared().sandbox().await;
    let stream = sandbox.data_plane.start(&shell("echo early; exit 5", None)).await.unwrap();
    let pid = stream.pid();
    drop(stream);

    let late = sandbox.data_plane.attach(pid).await.unwrap().output().await.unwrap();

    assert_eq!(String::from_utf8_lossy(&late.stdout), "early\n");
    assert_eq!(late.end.exit_code, 5);
}

async fn a_signal_reaches_the_whole_process_group() {
    let sandbox = Host::shared().sandbox().await;
    let stream = sandbox.data_plane.start(&shell("sleep 1000 & sleep 1000 & echo started; wait", None)).await.unwrap();
    let pid = stream.pid();
    eventually("both children run", || async { sandbox.sh("pgrep -c sleep").await.stdout == b"2\n" }).await;
    assert!(sandbox.data_plane.processes().await.unwrap().iter().any(|process| process.pid == pid));

    sandbox.data_plane.signal(pid, Signal::Kill).await.unwrap();

    let output = stream.output().await.unwrap();
    assert!(!output.end.exited, "{:?}", output.end);
    eventually("no child is left", || async { sandbox.sh("pgrep -c sleep").await.stdout == b"0\n" }).await;
    assert_eq!(sandbox.data_plane.signal(pid, Signal::Kill).await.unwrap_err().code(), Some("not_found"));
}

async fn a_process_ends_at_the_deadline_its_client_set() {
    let sandbox = Host::shared().sandbox().await;
    let command = Command { timeout: Some(Duration::from_secs(2)), ..shell("sleep 1000", None) };

    let ended = sandbox.data_plane.run(&command).await;

    let ended_early = match ended {
        Ok(output) => !output.end.exited,
        Err(error) => error.code() == Some("deadline_exceeded"),
    };
    assert!(ended_early);
    eventually("the process is gone", || async { sandbox.sh("pgrep -c sleep").await.stdout == b"0\n" }).await;
}

async fn a_terminal_has_the_size_it_was_given_and_can_be_resized() {
    let sandbox = Host::shared().sandbox().await;
    let mut command = shell("stty size; read line; stty size; test -t 0 && echo terminal", None);
    command.pty = Some((100, 30));
    let mut stream = sandbox.data_plane.start(&command).await.unwrap();
    let pid = stream.pid();

    let mut seen = String::new();
    let mut resized = false;
    while let Some(event) = stream.next().await.unwrap() {
        if let ProcessEvent::Data(DataEvent::Pty(data)) = event {
            seen.push_str(&String::from_utf8_lossy(&sandpiper::client::decode(&data).unwrap()));
        }
        if !resized && seen.contains("30 100") {
            resized = true;
            sandbox.data_plane.resize(pid, 120, 40).await.unwrap();
            sandbox.data_plane.send_pty(pid, b"go\n").await.unwrap();
        }
    }

    assert!(seen.contains("40 120"), "{seen:?}");
    assert!(seen.contains("terminal"), "{seen:?}");
}

async fn what_the_guest_does_not_offer_is_unimplemented() {
    let sandbox = Host::shared().sandbox().await;

    let answer = Host::shared()
        .client
        .http()
        .post(format!("{}/volume.Volume/Stat", sandbox.session.data_plane_url))
        .header("x-access-token", &sandbox.session.access_token)
        .json(&serde_json::json!({"path": "/"}))
        .send()
        .await
        .unwrap();

    assert_eq!(answer.status(), 501);
    let body: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(body["code"], "unimplemented");
}

/// Bytes without a short period, so that a lost or doubled piece shows.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    })
    .take(length)
    .collect()
}
