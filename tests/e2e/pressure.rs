//! A host that has little left, and one with much to do.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use futures_util::stream::{self, StreamExt};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::SandboxState;
use support::{Dialogue, Host, KEEPER, Sandbox, small};

tests! {
    shared: [],
    alone: [
        a_pause_for_which_the_disk_has_no_room_is_refused_and_the_sandbox_goes_on,
        a_pause_while_the_host_has_hardly_any_memory_comes_about_and_loses_nothing,
        fifty_sandboxes_live_at_once_and_leave_nothing,
    ],
}

/// Sandboxes that live at once.
const MANY: usize = 50;
/// So many are created at a time.
const AT_A_TIME: usize = 4;

async fn a_pause_for_which_the_disk_has_no_room_is_refused_and_the_sandbox_goes_on() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    let mut keeper = Dialogue::start(&sandbox, KEEPER).await;
    keeper.ask("fill 120").await;
    let digest = keeper.ask("digest").await;

    let filler = Filler::leaving(60 << 20);
    let refused = sandbox.pause().await;

    let error = refused.expect_err("120 MiB of memory do not fit into 60 MiB of disk");
    assert_eq!(error.status().map(|status| status / 100), Some(5), "{error}");
    let view = host.agent_view(&sandbox.id).await.unwrap();
    assert_eq!(format!("{:?}", view.state), "Ready", "{:?}; the pause said: {error}", view.error);
    // The stream that was there before is there still.
    let ticks = keeper.ask_number("ticks").await;
    keeper.grows("ticks", ticks).await;
    assert_eq!(keeper.ask("digest").await, digest);

    drop(filler);
    sandbox.pause().await.expect("with room, the sandbox is paused");
    sandbox.resume(None).await.expect("the sandbox is resumed");
    assert_eq!(Dialogue::attach(&sandbox, keeper.pid()).await.ask("digest").await, digest);
    host.leaves_nothing(sandbox).await;
}

async fn a_pause_while_the_host_has_hardly_any_memory_comes_about_and_loses_nothing() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    let mut keeper = Dialogue::start(&sandbox, KEEPER).await;
    keeper.ask("fill 120").await;
    let digest = keeper.ask("digest").await;

    // What a pause writes down is already in memory, and what it has written can be let go of.
    let mut hog = Hog::leaving_mib(150);
    let paused = sandbox.pause().await;

    assert!(hog.holds(), "the kernel had to end somebody for want of memory; the pause came to {:?}", paused.map(drop));
    drop(hog);
    paused.expect("the sandbox is paused");
    let view = host.agent_view(&sandbox.id).await.unwrap();
    assert_eq!(view.state, SandboxState::Stopped, "{:?}", view.error);
    sandbox.resume(None).await.expect("the sandbox is resumed");
    assert_eq!(Dialogue::attach(&sandbox, keeper.pid()).await.ask("digest").await, digest);
    host.leaves_nothing(sandbox).await;
}

async fn fifty_sandboxes_live_at_once_and_leave_nothing() {
    let host = Host::shared();
    let request = CreateSandbox { memory_mb: Some(128), timeout: Some(3600), ..small() };
    host.wait_until_warm(&request).await.delete().await;
    let before = host.agent_host().await.unwrap().sandboxes_live;
    let monitors = host.monitors().len();

    let create = |_| async {
        let sandbox = host.sandbox_with(&request).await;
        assert_eq!(sandbox.out("hostname").await, format!("{}\n", sandbox.id));
        sandbox
    };
    let sandboxes: Vec<Sandbox> = stream::iter(0..MANY).map(create).buffer_unordered(AT_A_TIME).collect().await;

    assert_eq!(host.monitors().len(), monitors + MANY);
    assert_eq!(host.agent_host().await.unwrap().sandboxes_live as usize, before as usize + MANY);
    for sandbox in &sandboxes {
        assert_eq!(sandbox.out("echo still here").await, "still here\n", "{}", sandbox.id);
    }
    stream::iter(sandboxes).for_each_concurrent(AT_A_TIME, |sandbox| host.leaves_nothing(sandbox)).await;
    assert_eq!(host.agent_host().await.unwrap().sandboxes_live, before);
}

/// A process that holds most of the host's memory, and is the first that the kernel would end for want of it.
struct Hog(Child);

impl Hog {
    fn leaving_mib(left: u64) -> Self {
        let script = format!(
            "import sys, time\n\
             open('/proc/self/oom_score_adj', 'w').write('1000')\n\
             available = int(next(l for l in open('/proc/meminfo') if l.startswith('MemAvailable')).split()[1])\n\
             held = bytearray(max(available - {left} * 1024, 0) * 1024)\n\
             print('holds', flush=True)\n\
             time.sleep(600)\n"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process that takes memory starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("it says when it has the memory");
        assert_eq!(line, "holds\n");
        Self(child)
    }

    /// Whether it has the memory still.
    fn holds(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_none())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that takes what the disk has but for a little, and is removed when dropped.
struct Filler(PathBuf);

impl Filler {
    /// Leaves so many bytes to those who are not root.
    fn leaving(bytes: u64) -> Self {
        let path = PathBuf::from(support::FILLER);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .expect("a file to fill the disk with");
        let filler = Self(path);
        let disk = statvfs("/var/lib/sandpiper").expect("the disk's free space");
        let free = disk.blocks_available() * disk.fragment_size();
        let length = i64::try_from(free.saturating_sub(bytes)).expect("a disk of this world");
        fallocate(file, FallocateFlags::empty(), 0, length).expect("the disk is filled");
        filler
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
