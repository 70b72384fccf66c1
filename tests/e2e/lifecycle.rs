//! From creation to the end, whoever brings it about.

use sandpiper::client::CreateSandbox;
use support::{Host, eventually, shell, small, wait_for};

tests! {
    shared: [
        a_sandbox_is_created_listed_shown_and_deleted_without_a_trace,
        several_cpus_and_more_memory_are_really_there,
        a_sandbox_is_destroyed_at_its_timeout,
        a_guest_that_powers_itself_off_is_reported,
        a_guest_that_reboots_is_reported,
        a_kernel_panic_is_reported,
        a_monitor_that_is_killed_is_reported,
    ],
    alone: [],
}

async fn a_sandbox_is_created_listed_shown_and_deleted_without_a_trace() {
    let host = Host::shared();
    let before = mounts();
    let sandbox = host.sandbox().await;
    let id = sandbox.id.clone();

    let shown = host.client.show(&id).await.unwrap();
    assert_eq!((shown.state.as_str(), shown.template.as_str(), shown.memory_mb), ("ready", "base", 256));
    assert!(host.client.list("query[state][]=running").await.unwrap().iter().any(|listed| listed.id == id));
    assert!(host.monitor_of(&id).is_some());
    assert!(!host.files_of(&id).is_empty());

    sandbox.delete().await;

    assert_eq!(host.client.show(&id).await.unwrap_err().status(), Some(404));
    assert_eq!(host.client.delete(&id).await.unwrap_err().status(), Some(404));
    assert_eq!(host.monitor_of(&id), None);
    assert_eq!(host.files_of(&id), Vec::<std::path::PathBuf>::new());
    assert_eq!(mounts(), before);
}

/// What is mounted on the host; without the names of network namespaces, of which the next ones are made meanwhile.
fn mounts() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    mounts.lines().filter(|line| !line.contains(" /run/netns/")).map(str::to_owned).collect()
}

async fn several_cpus_and_more_memory_are_really_there() {
    let request = CreateSandbox { cpu: Some(2), memory_mb: Some(1024), ..small() };
    let sandbox = Host::shared().sandbox_with(&request).await;

    let seen = sandbox.sh("nproc; awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo").await;

    let seen = String::from_utf8(seen.stdout).unwrap();
    let (cpus, memory) = seen.trim().split_once('\n').unwrap();
    assert_eq!(cpus, "2");
    assert!((900..=1024).contains(&memory.parse::<u32>().unwrap()), "{memory} MiB");
}

async fn a_sandbox_is_destroyed_at_its_timeout() {
    let host = Host::shared();
    let sandbox = host.sandbox_with(&CreateSandbox { timeout: Some(3), ..small() }).await;

    eventually("the sandbox is gone", || async {
        host.client.show(&sandbox.id).await.is_err_and(|error| error.status() == Some(404))
    })
    .await;

    assert_eq!(host.monitor_of(&sandbox.id), None);
    assert_eq!(host.files_of(&sandbox.id), Vec::<std::path::PathBuf>::new());
}

async fn a_guest_that_powers_itself_off_is_reported() {
    assert_eq!(end_of_a_sandbox("poweroff").await, "guest_powered_off");
}

async fn a_guest_that_reboots_is_reported() {
    assert_eq!(end_of_a_sandbox("reboot").await, "guest_reset");
}

async fn a_kernel_panic_is_reported() {
    assert_eq!(end_of_a_sandbox("echo c > /proc/sysrq-trigger").await, "guest_panicked");
}

async fn a_monitor_that_is_killed_is_reported() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;

    nix::sys::signal::kill(host.monitor_of(&sandbox.id).unwrap(), nix::sys::signal::Signal::SIGKILL).unwrap();

    let error = wait_for("the end is reported", || async { host.client.show(&sandbox.id).await.unwrap().error }).await;
    assert_eq!(error.code, "monitor_failed");
}

/// How the API reports the end of a sandbox in which root runs `script`.
async fn end_of_a_sandbox(script: &str) -> String {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    // The command's stream breaks off with the machine.
    let _ = sandbox.data_plane.run(&shell(script, Some("root"))).await;

    let ended = wait_for("the end is reported", || async {
        let shown = host.client.show(&sandbox.id).await.unwrap();
        (shown.state == "stopped").then_some(shown)
    })
    .await;

    assert_eq!(host.monitor_of(&sandbox.id), None);
    let logs = host.client.logs(&sandbox.id, None).await.unwrap();
    assert!(!logs.is_empty());
    ended.error.expect("a sandbox that ended by itself says why").code
}
