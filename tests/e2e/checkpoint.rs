//! Checkpoints: what a sandbox was, for others to go on from.

use std::process::Command;

use sandpiper::client::NewCheckpoint;
use support::{COUNTER, Checkpoint, Dialogue, Host, Sandbox, layers, text};

tests! {
    shared: [
        a_checkpoint_has_the_files_of_its_moment_and_lasts_on_in_what_was_started_from_it,
        a_checkpoint_outlives_its_sandbox,
        a_checkpoint_of_a_disk_that_is_written_to_is_a_consistent_file_system,
        a_checkpoint_with_memory_has_disk_and_memory_of_one_moment_and_its_processes_go_on,
        a_stopped_sandbox_is_checkpointed_with_and_without_its_memory,
    ],
    alone: [],
}

/// Reads the counter's file past every cache and prints how many blocks it has, each of them whole.
const BLOCKS: &str = r#"python3 -c '
import os
fd = os.open("counter", os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
size = os.fstat(fd).st_size
for n in range(1, size // 4096 + 1):
    assert os.pread(fd, 4096, (n - 1) * 4096) == b"%07d\n" % n * 512, f"block {n} of {size / 4096}"
assert size % 4096 == 0, size
print(size // 4096)'"#;

async fn a_checkpoint_has_the_files_of_its_moment_and_lasts_on_in_what_was_started_from_it() {
    let host = Host::shared();
    let source = host.sandbox().await;
    source.out("echo before > file; mkdir kept; echo kept > kept/file").await;

    let new = NewCheckpoint { name: Some("before-the-change".into()), memory: false };
    let checkpoint = source.checkpoint_as(&new).await.expect("the checkpoint is taken");
    source.out("echo after > file; rm -r kept").await;

    assert_eq!((checkpoint.info.name.as_str(), checkpoint.info.state.as_str()), ("before-the-change", "ready"));
    assert_eq!((&checkpoint.info.sandbox, checkpoint.info.memory), (&source.id, false));
    let listed = host.client.checkpoints(Some(&source.id)).await.unwrap();
    assert_eq!(listed.iter().map(|listed| &listed.id).collect::<Vec<_>>(), [&checkpoint.id]);
    let twin = source.checkpoint_as(&new).await;
    assert_eq!(twin.err().and_then(|error| error.status()), Some(409), "a name is given once");

    let (first, second) = tokio::join!(host.restore(&checkpoint), host.restore(&checkpoint));
    for restored in [&first, &second] {
        assert_eq!(restored.out("cat file kept/file; hostname").await, format!("before\nkept\n{}\n", restored.id));
    }
    first.out("echo mine > file").await;
    assert_eq!(second.out("cat file").await, "before\n");
    assert_eq!(source.out("cat file; ls -d kept || true").await, "after\n", "the source is as it was left");

    // Neither the checkpoint nor its source is needed by what goes on from it.
    let id = checkpoint.id.clone();
    checkpoint.delete().await;
    assert_eq!(host.files_of(&id), Vec::<std::path::PathBuf>::new());
    source.delete().await;
    first.root_sh("echo 3 > /proc/sys/vm/drop_caches").await;
    assert_eq!(first.out("cat file kept/file").await, "mine\nkept\n");
    assert_eq!(second.out("cat file kept/file").await, "before\nkept\n");
    host.leaves_nothing(first).await;
    host.leaves_nothing(second).await;
}

async fn a_checkpoint_outlives_its_sandbox() {
    let host = Host::shared();
    let source = host.sandbox().await;
    source.out("echo kept > kept").await;
    let checkpoint = source.checkpoint(false).await.expect("the checkpoint is taken");
    host.leaves_nothing(source).await;

    let restored = host.restore(&checkpoint).await;

    assert_eq!(restored.out("cat kept").await, "kept\n");
}

async fn a_checkpoint_of_a_disk_that_is_written_to_is_a_consistent_file_system() {
    let host = Host::shared();
    let source = host.sandbox().await;
    let mut counter = Dialogue::start(&source, COUNTER).await;
    counter.grows("count", 20).await;

    let before = counter.ask_number("count").await;
    let checkpoint = source.checkpoint(false).await.expect("the checkpoint is taken");
    let after = counter.ask_number("count").await;

    check_file_system(&checkpoint);
    counter.grows("count", after).await;
    assert_eq!(counter.ask("check").await, "whole", "the source's own disk");
    let restored = host.restore(&checkpoint).await;
    let kept = blocks(&restored).await;
    assert!((before..=after).contains(&kept), "{before} were on the disk before, {after} after, {kept} were kept");
}

async fn a_checkpoint_with_memory_has_disk_and_memory_of_one_moment_and_its_processes_go_on() {
    let host = Host::shared();
    let source = host.sandbox().await;
    let mut counter = Dialogue::start(&source, COUNTER).await;
    let mut last = None;
    // The memory of a later one lies above that of the one before, and does not need that any more.
    for number in 0..3 {
        let before = counter.grows("count", 20 * (number + 1)).await;

        let checkpoint = source.checkpoint(true).await.expect("the checkpoint is taken");
        let after = counter.ask_number("count").await;

        assert!(checkpoint.info.memory);
        if let Some(last) = last.replace(checkpoint) {
            last.delete().await;
        }
        let restored = host.restore(last.as_ref().expect("it was just taken")).await;
        let mut copy = Dialogue::attach(&restored, counter.pid()).await;
        assert_eq!(copy.ask("check").await, "whole", "disk and memory are of different moments");
        let first = copy.ask_number("count").await;
        assert!(first >= before, "{before} was counted before the checkpoint, {first} after the restore");
        copy.grows("count", first).await;
        assert_eq!(copy.ask("check").await, "whole", "the copy went on");
        counter.grows("count", after).await;
        assert_eq!(counter.ask("check").await, "whole", "the source went on");
        assert_eq!(restored.out("hostname").await, format!("{}\n", restored.id));
    }
}

async fn a_stopped_sandbox_is_checkpointed_with_and_without_its_memory() {
    let host = Host::shared();
    let mut source = host.sandbox().await;
    let mut counter = Dialogue::start(&source, COUNTER).await;
    counter.grows("count", 5).await;
    source.pause().await.expect("the sandbox is paused");

    let disk = source.checkpoint(false).await.expect("the checkpoint of the disk is taken");
    let memory = source.checkpoint(true).await.expect("the checkpoint with memory is taken");

    assert_eq!(host.client.show(&source.id).await.unwrap().state, "stopped");
    let (booted, restored) = tokio::join!(host.restore(&disk), host.restore(&memory));
    assert!(blocks(&booted).await > 5);
    assert_eq!(Dialogue::attach(&restored, counter.pid()).await.ask("check").await, "whole");
    source.resume(None).await.expect("the sandbox is resumed");
    assert_eq!(Dialogue::attach(&source, counter.pid()).await.ask("check").await, "whole");
}

/// Has `e2fsck` look at the disk that a checkpoint keeps, without repairing anything.
fn check_file_system(checkpoint: &Checkpoint) {
    let host = Host::shared();
    let snapshot = &host.manifest(&checkpoint.id)["snapshot"];
    let disk = snapshot["files"]["disk"].as_array().unwrap_or_else(|| panic!("layers in {snapshot}"));
    let folder = host.checkpoint_folder(&checkpoint.id);
    let files: Vec<_> = disk.iter().map(|layer| folder.join(layer["name"].as_str().expect("a name"))).collect();
    let size = snapshot["disk_gib"].as_u64().expect("the disk's size") << 30;
    let scratch = host.scratch();
    let flat = scratch.path().join("disk");
    layers::flatten(&files, size, &flat).expect("the layers are read");

    let checked = Command::new("e2fsck").arg("-fn").arg(&flat).output().expect("e2fsck runs");

    assert!(checked.status.success(), "{}: {}{}", checked.status, text(&checked.stdout), text(&checked.stderr));
}

/// How many blocks the counter's file has on a sandbox's disk.
async fn blocks(sandbox: &Sandbox) -> u64 {
    sandbox.out(BLOCKS).await.trim().parse().expect("a number")
}
