//! Pause and resume: what was there goes on.

use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use sandpiper::client::{CreateSandbox, Lifecycle, OnTimeout};
use sandpiper_protocol::agent::{SandboxState, StartKind};
use serde_json::json;
use support::{Dialogue, Host, KEEPER, small, wait_until, within};

tests! {
    shared: [
        twenty_pauses_lose_nothing,
        what_was_written_before_the_pause_at_the_deadline_is_there_after_the_resume,
        a_pause_at_the_deadline_may_keep_the_disk_alone,
        what_a_sandbox_used_is_known_while_it_is_stopped,
        a_resume_moves_the_deadline_out_and_never_closer,
        a_resume_that_meets_a_pause_ends_with_a_live_sandbox,
        a_download_that_a_pause_cuts_ends_and_the_next_one_works,
    ],
    alone: [
        a_process_goes_on_after_a_resume_as_if_nothing_had_been,
    ],
}

async fn a_process_goes_on_after_a_resume_as_if_nothing_had_been() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    let mut keeper = Dialogue::start(&sandbox, KEEPER).await;
    assert_eq!(keeper.ask("fill 100").await, "100");
    let (digest, ticks) = (keeper.ask("digest").await, keeper.ask_number("ticks").await);
    let traces = host.traces_of(&sandbox.id);
    let (live, stopped) = usage().await;

    let paused = sandbox.pause().await.expect("the sandbox is paused");

    assert_eq!((paused.state.as_str(), paused.deadline), ("stopped", None));
    assert_eq!(host.client.show(&sandbox.id).await.unwrap().state, "stopped");
    assert_eq!(host.monitor_of(&sandbox.id), None);
    traces.process_is_gone().await;
    assert_eq!(usage().await, (live - 1, stopped + 1));
    assert_eq!(sandbox.pause().await.expect("a paused sandbox stays so").state, "stopped");

    let resumed = sandbox.resume(None).await.expect("the sandbox is resumed");

    assert_eq!(resumed.state, "ready");
    assert_eq!(host.agent_view(&sandbox.id).await.unwrap().start, StartKind::Restored);
    assert_eq!(usage().await, (live, stopped));
    let mut keeper = Dialogue::attach(&sandbox, keeper.pid()).await;
    assert_eq!(keeper.ask("digest").await, digest, "memory, or a file without a name, has changed");
    let later = keeper.ask_number("ticks").await;
    assert!(later >= ticks, "{ticks} turns before, {later} after");
    keeper.grows("ticks", later).await;
    host.leaves_nothing(sandbox).await;
}

async fn twenty_pauses_lose_nothing() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    let keeper = Dialogue::start(&sandbox, KEEPER).await.pid();

    for cycle in 1..=20 {
        sandbox.out(&format!("echo {cycle} >> cycles")).await;
        sandbox.pause_and_resume().await;
    }

    let expected: String = (1..=20).map(|cycle| format!("{cycle}\n")).collect();
    assert_eq!(sandbox.out("cat cycles").await, expected);
    // From the disk, past the guest's own memory.
    sandbox.root_sh("sync; echo 3 > /proc/sys/vm/drop_caches").await;
    assert_eq!(sandbox.out("cat cycles").await, expected);
    Dialogue::attach(&sandbox, keeper).await.grows("ticks", 0).await;
    // One start, and a resume for each cycle.
    let generation: u64 = sandbox.out("cat /run/sandpiper/generation").await.trim().parse().unwrap();
    assert!(generation >= 21, "generation {generation}");
}

async fn what_was_written_before_the_pause_at_the_deadline_is_there_after_the_resume() {
    let host = Host::shared();
    let lifecycle = Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: false, ..Lifecycle::default() };
    let mut sandbox = host.sandbox_with(&CreateSandbox { lifecycle: Some(lifecycle), ..small() }).await;
    let synced = "import os; fd = os.open('synced', os.O_WRONLY | os.O_CREAT); os.write(fd, b'synced'); os.fsync(fd)";
    sandbox.out(&format!("echo -n unsynced > unsynced; python3 -c \"{synced}\"")).await;

    let path = format!("/sandboxes/{}", sandbox.id);
    host.client.call(Method::PATCH, &path, Some(json!({"timeout": 3}))).await.expect("the deadline is moved");
    sandbox.out("echo -n last > last").await;
    stops(&sandbox.id).await;

    assert_eq!(host.monitor_of(&sandbox.id), None);
    sandbox.resume(Some(900)).await.expect("the sandbox is resumed");
    assert_eq!(sandbox.out("cat unsynced synced last").await, "unsyncedsyncedlast");
    sandbox.root_sh("sync; echo 3 > /proc/sys/vm/drop_caches").await;
    assert_eq!(sandbox.out("cat unsynced synced last").await, "unsyncedsyncedlast");
}

async fn a_pause_at_the_deadline_may_keep_the_disk_alone() {
    let host = Host::shared();
    let lifecycle = Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: false, ..Lifecycle::default() };
    let mut sandbox = host.sandbox_with(&CreateSandbox { lifecycle: Some(lifecycle), ..small() }).await;
    sandbox.out("echo -n kept > kept; echo lost > /dev/shm/lost").await;

    let path = format!("/sandboxes/{}", sandbox.id);
    let change = json!({"timeout": 3, "lifecycle": {"pause_memory": false}});
    host.client.call(Method::PATCH, &path, Some(change)).await.expect("the deadline is moved");
    stops(&sandbox.id).await;
    sandbox.resume(Some(900)).await.expect("the sandbox is resumed");

    assert_eq!(host.agent_view(&sandbox.id).await.unwrap().start, StartKind::Cold);
    assert_eq!(sandbox.out("cat kept; ls /dev/shm").await, "kept");
}

async fn what_a_sandbox_used_is_known_while_it_is_stopped() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    sandbox.out("setsid timeout 300 sh -c 'while :; do :; done' >/dev/null 2>&1 </dev/null &").await;
    let history = async || {
        let since = Timestamp::now() - SignedDuration::from_mins(30);
        host.client.history(&sandbox.id, since).await.map_err(|error| error.to_string())
    };

    let busy = wait_until("the sandbox is seen to be busy", || async {
        let points = history().await?.points;
        points.into_iter().find(|point| point.cpu_used_pct > 20.0).ok_or_else(|| "it is not".to_owned())
    })
    .await;
    assert!(busy.memory_bytes > 16 << 20 && busy.disk_bytes > 0, "{busy:?}");
    host.client.pause(&sandbox.id).await.expect("the sandbox is paused");

    let points = history().await.expect("it is known").points;
    assert!(points.iter().any(|point| point.time == busy.time), "{points:?}");
    sandbox.resume(Some(900)).await.expect("the sandbox is resumed");
}

async fn a_resume_moves_the_deadline_out_and_never_closer() {
    let host = Host::shared();
    let mut sandbox = host.sandbox_with(&CreateSandbox { timeout: Some(600), ..small() }).await;
    let id = sandbox.id.clone();
    let deadline = async || host.agent_view(&id).await.unwrap().deadline;
    let created = deadline().await;

    sandbox.resume(Some(10)).await.expect("a live sandbox may be resumed");
    assert_eq!(deadline().await, created, "a deadline was brought forward");
    sandbox.resume(Some(1200)).await.expect("a live sandbox may be resumed");
    let moved = deadline().await;
    assert!(moved > created, "{created} is not before {moved}");

    // Of a sandbox that was stopped it counts from the resume, whatever it was before.
    sandbox.pause().await.expect("the sandbox is paused");
    sandbox.resume(Some(60)).await.expect("the sandbox is resumed");
    let resumed = host.agent_view(&sandbox.id).await.unwrap();
    let started = resumed.started_at.expect("it was started");
    assert_eq!(resumed.deadline.duration_since(started).as_secs(), 60);
    sandbox.pause_and_resume().await;
    let again = deadline().await;
    assert!(again > resumed.deadline, "its own time-out of 600 s ends at {again}");
}

async fn a_resume_that_meets_a_pause_ends_with_a_live_sandbox() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    sandbox.out("echo kept > kept").await;

    let id = sandbox.id.clone();
    let pause = tokio::spawn(async move { host.client.pause(&id).await });
    wait_until("the pause begins", || async {
        let state = host.agent_view(&sandbox.id).await.map_err(|error| error.to_string())?.state;
        let began = matches!(state, SandboxState::Stopping | SandboxState::Stopped);
        if began { Ok(()) } else { Err(format!("it is {state:?}")) }
    })
    .await;
    let resumed = host.client.resume(&sandbox.id, None).await;
    let paused = pause.await.expect("the pause comes to an end");

    // The pause came about, for a moment, or not any more.
    let paused = paused.map(|sandbox| sandbox.state).map_err(|error| error.to_string());
    resumed.unwrap_or_else(|error| panic!("the resume is refused: {error}; the pause came to {paused:?}"));
    wait_until("the sandbox is shown as live", || async {
        let state = host.client.show(&sandbox.id).await.map_err(|error| error.to_string())?.state;
        if state == "ready" { Ok(()) } else { Err(format!("it is {state}; the pause came to {paused:?}")) }
    })
    .await;
    assert_eq!(sandbox.out("cat kept").await, "kept\n");
}

async fn a_download_that_a_pause_cuts_ends_and_the_next_one_works() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    sandbox.out("head -c 20M /dev/urandom > big").await;
    let hash = sandbox.out("sha256sum < big").await;
    let url = format!("{}/files?path=big", sandbox.session.data_plane_url);
    let token = &sandbox.session.access_token;
    let mut download = host.client.http().get(&url).header("x-access-token", token).send().await.unwrap();
    assert_eq!(download.status(), 200);
    download.chunk().await.expect("the download begins");

    let rest = tokio::spawn(async move { while let Ok(Some(_)) = download.chunk().await {} });
    let paused = sandbox.pause().await;
    within("the download", rest).await.expect("the download comes to an end");

    paused.expect("a transfer does not keep a sandbox from being paused");
    sandbox.resume(None).await.expect("the sandbox is resumed");
    let big = sandbox.data_plane.read_file("big", None).await.expect("the next download works");
    assert_eq!(big.len(), 20 << 20);
    sandbox.data_plane.write_file("copy", big, None).await.expect("an upload works");
    assert_eq!(sandbox.out("sha256sum < copy").await, hash);
}

/// Waits until a sandbox has been stopped.
async fn stops(id: &str) {
    let host = Host::shared();
    wait_until("the sandbox is stopped", || async {
        let shown = host.client.show(id).await.map_err(|error| error.to_string())?;
        if shown.state == "stopped" { Ok(()) } else { Err(format!("{} {:?}", shown.state, shown.error)) }
    })
    .await;
}

/// How many live sandboxes count against the quota, and how many stopped ones there are.
async fn usage() -> (i64, i64) {
    let limits = Host::shared().client.call(Method::GET, "/sandbox_limits", None).await.expect("the limits are shown");
    let count = |name: &str| limits["quota"]["usage"][name].as_i64().unwrap_or_else(|| panic!("{name} in {limits}"));
    (count("sandboxes"), count("stopped"))
}
