//! Machines that end unasked: what their guests had flushed is on the disks that are left.

use nix::sys::signal::{Signal, kill};
use sandpiper::client::CreateSandbox;
use support::{Host, Sandbox, eventually, shell, small, wait_for};

tests! {
    shared: [
        what_was_flushed_outlives_a_monitor_that_is_killed,
        what_was_flushed_outlives_a_kernel_panic,
        what_is_left_of_a_machine_is_checkpointed_and_forked,
        what_is_left_of_a_machine_goes_at_its_deadline,
    ],
    alone: [],
}

/// Writes a file, and returns when it is said to be on the disk.
const FLUSH: &str = "python3 -c '
import os
fd = os.open(\"flushed\", os.O_CREAT | os.O_WRONLY)
os.write(fd, b\"flushed\\n\" * 100000)
os.fsync(fd)
os.fsync(os.open(\".\", os.O_RDONLY))'";

/// What a file that [`FLUSH`] wrote holds.
const LINES: &str = "sort -u flushed; wc -l < flushed";

async fn what_was_flushed_outlives_a_monitor_that_is_killed() {
    let mut sandbox = flushed().await;
    kill_monitor(&sandbox).await;
    goes_on(&mut sandbox, "monitor_failed").await;
    Host::shared().leaves_nothing(sandbox).await;
}

async fn what_was_flushed_outlives_a_kernel_panic() {
    let mut sandbox = flushed().await;
    // The command's stream breaks off with the machine.
    let _ = sandbox.data_plane.run(&shell("echo c > /proc/sysrq-trigger", Some("root"))).await;
    goes_on(&mut sandbox, "guest_panicked").await;
    Host::shared().leaves_nothing(sandbox).await;
}

async fn what_is_left_of_a_machine_is_checkpointed_and_forked() {
    let host = Host::shared();
    let sandbox = flushed().await;
    kill_monitor(&sandbox).await;
    ended(&sandbox).await;

    let checkpoint = sandbox.checkpoint(true).await.expect("the checkpoint is taken");
    assert!(!checkpoint.info.memory, "there is none");
    let forks = sandbox.fork(1).await.expect("the fork is made");
    let restored = host.restore(&checkpoint).await;

    for heir in forks.into_iter().chain([restored]) {
        assert_eq!(heir.out(LINES).await, "flushed\n100000\n");
        host.leaves_nothing(heir).await;
    }
    assert_eq!(host.client.show(&sandbox.id).await.unwrap().state, "stopped");
    checkpoint.delete().await;
    host.leaves_nothing(sandbox).await;
}

async fn what_is_left_of_a_machine_goes_at_its_deadline() {
    let host = Host::shared();
    let sandbox = host.sandbox_with(&CreateSandbox { timeout: Some(20), ..small() }).await;
    kill_monitor(&sandbox).await;
    ended(&sandbox).await;

    eventually("the sandbox is gone", || async {
        host.client.show(&sandbox.id).await.is_err_and(|error| error.status() == Some(404))
    })
    .await;

    assert_eq!(host.files_of(&sandbox.id), Vec::<std::path::PathBuf>::new());
}

/// A sandbox with a file on its disk.
async fn flushed() -> Sandbox {
    let sandbox = Host::shared().sandbox().await;
    sandbox.out(FLUSH).await;
    sandbox
}

async fn kill_monitor(sandbox: &Sandbox) {
    kill(Host::shared().monitor_of(&sandbox.id).expect("a monitor"), Signal::SIGKILL).unwrap();
}

/// Waits until it is known that the machine ended; why it did.
async fn ended(sandbox: &Sandbox) -> String {
    let shown = wait_for("the end is reported", || async {
        let shown = Host::shared().client.show(&sandbox.id).await.unwrap();
        (shown.state == "stopped").then_some(shown)
    })
    .await;
    shown.error.expect("the reason").code
}

/// The sandbox ended for this reason; it boots with its file, and with a file system in which it can write.
async fn goes_on(sandbox: &mut Sandbox, code: &str) {
    assert_eq!(ended(sandbox).await, code);
    let resumed = sandbox.resume(None).await.expect("the sandbox is resumed");
    assert_eq!(resumed.state, "ready");
    assert!(resumed.error.is_none());
    assert_eq!(sandbox.out(LINES).await, "flushed\n100000\n");
    sandbox.out("echo more > more; sync").await;
}
