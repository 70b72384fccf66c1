//! Volumes of sandboxes: who has which, and what outlives whom.

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use reqwest::Method;
use sandpiper::client::{ClientError, CreateSandbox, Lifecycle, OnTimeout};
use sandpiper_protocol::agent::StartKind;
use serde_json::{Value, json};
use support::{Dialogue, HOLDER, Host, Sandbox, Volume, eventually, from_checkpoint, small, text, wait_until};

tests! {
    shared: [
        what_was_flushed_outlives_a_monitor_that_is_killed,
        a_pause_releases_the_volume_and_a_resume_takes_it_again,
        an_open_file_keeps_the_volume_from_a_pause_unless_that_is_forced,
        a_pause_at_the_deadline_takes_the_volume_from_whoever_has_a_file_open,
        a_checkpoint_with_memory_has_no_volume_and_the_sandbox_has_its_own_again,
        an_open_file_keeps_the_volume_from_a_fork_unless_that_is_forced,
        a_checkpoint_of_the_disk_alone_leaves_the_volume_mounted,
        twenty_pauses_lose_nothing_of_a_volume,
    ],
    alone: [
        of_two_sandboxes_that_race_for_a_volume_one_gets_it_two_hundred_times,
    ],
}

/// Two hundred times, on so many volumes at once.
const RACES: usize = 200;
const LANES: usize = 4;
const PAUSES: usize = 20;

/// Writes a file of a volume, and returns when it is said to be on the disk.
const FLUSH: &str = "python3 -c '
import os
fd = os.open(\"/data/flushed\", os.O_CREAT | os.O_WRONLY)
os.write(fd, b\"flushed\\n\" * 100000)
os.fsync(fd)
os.fsync(os.open(\"/data\", os.O_RDONLY))'";

async fn what_was_flushed_outlives_a_monitor_that_is_killed() {
    let host = Host::shared();
    let volume = host.volume("killed").await;
    let first = volume.sandbox().await;
    first.out(FLUSH).await;
    first.out("echo perhaps > /data/unflushed").await;

    kill(host.monitor_of(&first.id).expect("its monitor"), Signal::SIGKILL).expect("a process of ours");
    eventually("the volume is free", || async { volume.attached_to().await.is_none() }).await;

    let second = volume.sandbox().await;
    assert_eq!(second.out("sort -u /data/flushed; wc -l < /data/flushed").await, "flushed\n100000\n");
    let unflushed = second.out("cat /data/unflushed 2>/dev/null || true").await;
    assert!(["", "perhaps\n"].contains(&unflushed.as_str()), "{unflushed:?} is neither what was written nor nothing");
    let said = text(&second.root_sh("dmesg | grep 'EXT4-fs (vdb)'").await.stdout);
    assert!(said.contains("recovery complete") && !said.contains("error"), "the guest says of its volume: {said}");
    second.out("rm /data/flushed && echo usable > /data/file && sync -f /data/file").await;
    host.leaves_nothing(first).await;
    host.leaves_nothing(second).await;
    volume.delete().await;
}

async fn a_pause_releases_the_volume_and_a_resume_takes_it_again() {
    let host = Host::shared();
    let volume = host.volume("released").await;
    let mut first = volume.sandbox().await;
    assert_eq!(volume.attached_to().await.as_deref(), Some(first.id.as_str()));
    first.out("echo first > /data/file").await;

    first.pause().await.expect("the sandbox is paused");
    assert_eq!(volume.attached_to().await, None);
    let second = volume.sandbox().await;
    assert_eq!(second.out("cat /data/file; echo second >> /data/file").await, "first\n");
    refused(first.resume(None).await.map(|_| ()), "volume_attached");
    assert_eq!(host.client.show(&first.id).await.unwrap().state, "stopped");
    second.delete().await;
    first.resume(None).await.expect("the sandbox is resumed");

    assert_eq!(volume.attached_to().await.as_deref(), Some(first.id.as_str()));
    // What the kernel had cached of it before the pause is not what is on it now.
    assert_eq!(first.out("cat /data/file").await, "first\nsecond\n");
    first.out("echo third >> /data/file").await;
    first.pause().await.expect("the sandbox is paused");
    volume_has(&volume, "/file", "first\nsecond\nthird\n").await;
}

async fn an_open_file_keeps_the_volume_from_a_pause_unless_that_is_forced() {
    let host = Host::shared();
    let volume = host.volume("held-at-a-pause").await;
    let mut sandbox = volume.sandbox().await;
    let mut holder = Dialogue::start(&sandbox, HOLDER).await;
    assert_eq!(holder.ask("write").await, "done");

    let error = refused(sandbox.pause().await.map(|_| ()), "volume_busy");

    assert!(error.contains("/data") && error.contains("python3"), "it is not said who holds what: {error}");
    assert_eq!(host.client.show(&sandbox.id).await.unwrap().state, "ready");
    assert_eq!(holder.ask("write").await, "done", "a pause that was refused changes nothing");
    forced(&sandbox, "pause", json!({})).await;
    volume_has(&volume, "/held", "beforeafter!").await;
    sandbox.resume(None).await.expect("the sandbox is resumed");
    is_lost(&sandbox, &holder).await;
    assert_eq!(sandbox.out("cat /data/held; echo new > /data/new; cat /data/new").await, "beforeafter!new\n");
}

async fn a_pause_at_the_deadline_takes_the_volume_from_whoever_has_a_file_open() {
    let host = Host::shared();
    let volume = host.volume("held-at-the-deadline").await;
    let lifecycle = Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: false, ..Lifecycle::default() };
    let request = CreateSandbox { lifecycle: Some(lifecycle), ..volume.at("/data") };
    let mut sandbox = host.sandbox_with(&request).await;
    let mut holder = Dialogue::start(&sandbox, HOLDER).await;
    assert_eq!(holder.ask("write").await, "done");

    let path = format!("/sandboxes/{}", sandbox.id);
    host.client.call(Method::PATCH, &path, Some(json!({"timeout": 3}))).await.expect("the deadline is moved");
    wait_until("the sandbox is stopped", || async {
        let shown = host.client.show(&sandbox.id).await.map_err(|error| error.to_string())?;
        if shown.state == "stopped" { Ok(()) } else { Err(format!("{} {:?}", shown.state, shown.error)) }
    })
    .await;

    assert_eq!(volume.attached_to().await, None);
    let shown = host.client.show(&sandbox.id).await.unwrap();
    assert!(shown.error.is_none(), "it was not paused: {:?}", shown.error);
    sandbox.resume(Some(900)).await.expect("the sandbox is resumed");
    is_lost(&sandbox, &holder).await;
    assert_eq!(sandbox.out("cat /data/held").await, "beforeafter!");
}

async fn a_checkpoint_with_memory_has_no_volume_and_the_sandbox_has_its_own_again() {
    let host = Host::shared();
    let volume = host.volume("checkpointed").await;
    let sandbox = volume.sandbox().await;
    sandbox.out("echo on-the-volume > /data/file; echo on-the-disk > ~/file").await;
    let mut holder = Dialogue::start(&sandbox, HOLDER).await;
    assert_eq!(holder.ask("write").await, "done");

    refused(sandbox.checkpoint(true).await.map(drop), "volume_busy");
    let taken = forced(&sandbox, "checkpoints", json!({"memory": true})).await;

    assert_eq!(holder.ask("write").await, "EIO");
    assert_eq!(sandbox.out("cat /data/file").await, "on-the-volume\n");
    assert_eq!(volume.attached_to().await.as_deref(), Some(sandbox.id.as_str()));
    let checkpoint = taken["id"].as_str().expect("an id").to_owned();
    let restored = host.sandbox_with(&from_checkpoint(&checkpoint)).await;
    assert_eq!(mounts_of(&restored).await, json!({}));
    assert_eq!(restored.out("cat ~/file; ls -A /data").await, "on-the-disk\n");
    assert_eq!(Dialogue::attach(&restored, holder.pid()).await.ask("write").await, "EIO");
    // What goes on from it has volumes if its own request names some.
    sandbox.delete().await;
    let mounts = [("/data".to_owned(), volume.name.clone())].into();
    let second = CreateSandbox { volume_mounts: mounts, ..from_checkpoint(&checkpoint) };
    let second = host.sandbox_with(&second).await;
    assert_eq!(second.out("cat ~/file /data/file").await, "on-the-disk\non-the-volume\n");
    assert_eq!(host.agent_view(&second.id).await.unwrap().start, StartKind::Restored);
    assert_eq!(Dialogue::attach(&second, holder.pid()).await.ask("write").await, "EIO");
    host.leaves_nothing(restored).await;
    host.leaves_nothing(second).await;
    host.client.delete_checkpoint(&checkpoint).await.expect("the checkpoint is deleted");
}

async fn an_open_file_keeps_the_volume_from_a_fork_unless_that_is_forced() {
    let host = Host::shared();
    let volume = host.volume("forked").await;
    let sandbox = volume.sandbox().await;
    let mut holder = Dialogue::start(&sandbox, HOLDER).await;
    assert_eq!(holder.ask("write").await, "done");

    refused(sandbox.fork(1).await.map(drop), "volume_busy");
    let forks = forced(&sandbox, "fork", json!({"count": 1})).await;

    let fork = &forks["sandboxes"][0];
    assert_eq!((&fork["state"], &fork["volume_mounts"]), (&json!("ready"), &json!({})));
    assert_eq!(holder.ask("write").await, "EIO");
    assert_eq!(sandbox.out("cat /data/held").await, "beforeafter!");
    assert_eq!(volume.attached_to().await.as_deref(), Some(sandbox.id.as_str()));
    host.client.delete(fork["id"].as_str().expect("an id")).await.expect("the fork is deleted");
    // Nothing has a file open there now that could keep it.
    sandbox.root_sh(&format!("kill -9 {}", holder.pid())).await;
    let second = sandbox.fork(1).await.expect("the fork is made");
    assert_eq!(second[0].out("ls -A /data; touch /data/own && ls -A /data").await, "own\n");
    assert_eq!(sandbox.out("ls -A /data").await, "held\n");
}

async fn a_checkpoint_of_the_disk_alone_leaves_the_volume_mounted() {
    let host = Host::shared();
    let volume = host.volume("left-mounted").await;
    let sandbox = volume.sandbox().await;
    sandbox.out("echo on-the-volume > /data/file").await;
    let mut holder = Dialogue::start(&sandbox, HOLDER).await;
    assert_eq!(holder.ask("write").await, "done");

    let checkpoint = sandbox.checkpoint(false).await.expect("the checkpoint is taken");

    assert_eq!((holder.ask("write").await, holder.ask("read").await), ("done".to_owned(), "done".to_owned()));
    let restored = host.restore(&checkpoint).await;
    assert_eq!(mounts_of(&restored).await, json!({}));
    assert_eq!(restored.out("ls -A /data").await, "");
}

async fn twenty_pauses_lose_nothing_of_a_volume() {
    let host = Host::shared();
    let volume = host.volume("paused").await;
    let mut sandbox = volume.sandbox().await;
    for pause in 0..PAUSES {
        sandbox.out(&format!("echo {pause} >> /data/pauses")).await;
        sandbox.pause_and_resume().await;
    }

    let expected: String = (0..PAUSES).map(|pause| format!("{pause}\n")).collect();
    assert_eq!(sandbox.out("cat /data/pauses").await, expected);
    host.leaves_nothing(sandbox).await;
    volume_has(&volume, "/pauses", &expected).await;
}

async fn of_two_sandboxes_that_race_for_a_volume_one_gets_it_two_hundred_times() {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    let names: Vec<String> = (1..=LANES).map(|lane| format!("raced-{lane}")).collect();
    let volumes = join_all(names.iter().map(|name| host.volume(name))).await;
    for volume in &volumes {
        volume.sandbox().await.delete().await;
    }
    let before = host.inventory().await;

    let lanes = volumes.iter().map(|volume| race(host, volume, RACES / LANES));
    let wins = join_all(lanes).await;

    host.holds_what_it_held(&before).await;
    let [first, second] = wins.iter().fold([0, 0], |sum, wins| [sum[0] + wins[0], sum[1] + wins[1]]);
    println!("{RACES} races: {first} were won by the first of two requests, {second} by the second");
    assert_eq!(first + second, RACES);
}

/// Has two sandboxes ask for a volume at the same time, again and again; how often the first and the second of them got it.
async fn race(host: &'static Host, volume: &Volume<'_>, times: usize) -> [usize; 2] {
    let mut wins = [0, 0];
    for round in 0..times {
        let [first, second] = [(); 2].map(|()| {
            let request = volume.at("/data");
            tokio::spawn(async move { host.try_sandbox(&request).await })
        });
        let answers = (first.await.expect("an answer"), second.await.expect("an answer"));
        let (winner, loser, won) = match answers {
            (Ok(winner), Err(loser)) => (winner, loser, 0),
            (Err(loser), Ok(winner)) => (winner, loser, 1),
            (Ok(one), Ok(other)) => panic!("round {round}: {} and {} both have {}", one.id, other.id, volume.name),
            (Err(one), Err(other)) => panic!("round {round}: nobody got {}: {one}; {other}", volume.name),
        };
        assert_eq!((loser.status(), loser.code()), (Some(409), Some("volume_attached")), "round {round}: {loser}");
        winner.delete().await;
        wins[won] += 1;
    }
    wins
}

/// Panics unless something was refused with 409 and this code; what was said.
fn refused(outcome: Result<(), ClientError>, code: &str) -> String {
    let error = outcome.expect_err("it is refused");
    assert_eq!((error.status(), error.code()), (Some(409), Some(code)), "{error}");
    error.to_string()
}

/// Does something with a sandbox while its volumes are in use.
async fn forced(sandbox: &Sandbox, operation: &str, mut body: Value) -> Value {
    body["force"] = json!(true);
    let path = format!("/sandboxes/{}/{operation}", sandbox.id);
    let done = Host::shared().client.call(Method::POST, &path, Some(body)).await;
    done.unwrap_or_else(|error| panic!("{operation} is forced: {error}"))
}

/// Panics unless the program has an error for every use of the file that it had open.
async fn is_lost(sandbox: &Sandbox, holder: &Dialogue) {
    let mut holder = Dialogue::attach(sandbox, holder.pid()).await;
    for question in ["write", "read"] {
        assert_eq!(holder.ask(question).await, "EIO", "{question}");
    }
}

async fn mounts_of(sandbox: &Sandbox) -> Value {
    Host::shared().client.show(&sandbox.id).await.expect("the sandbox is shown").raw["volume_mounts"].clone()
}

/// Panics unless a file of a volume that no sandbox has holds this.
async fn volume_has(volume: &Volume<'_>, path: &str, content: &str) {
    let found = volume.read(path).await.bytes().await.expect("the file comes whole");
    assert_eq!(text(&found), content, "{path}");
}
