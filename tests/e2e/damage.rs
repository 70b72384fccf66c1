//! Snapshots whose files were damaged: they harm nobody but those who are started from them.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use sandpiper_protocol::agent::StartKind;
use serde_json::Value;
use support::{Host, Sandbox, damage, layers, wait_until, within};

tests! {
    shared: [
        a_sandbox_whose_state_is_damaged_boots_from_its_disk,
        a_paused_sandbox_whose_memory_is_damaged_harms_nobody_else,
        a_damaged_checkpoint_harms_only_what_is_started_from_it,
        a_paused_sandbox_whose_disk_is_damaged_harms_nobody_else,
        a_bit_that_flips_while_a_sandbox_is_paused_is_said_in_its_log,
        a_sandbox_whose_disk_is_not_there_is_refused_and_goes_on_when_it_is_back,
    ],
    alone: [
        a_warm_snapshot_whose_working_set_is_damaged_starts_sandboxes_all_the_same,
    ],
}

async fn a_sandbox_whose_state_is_damaged_boots_from_its_disk() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let mut sandbox = host.sandbox().await;
    for (how, damage) in damage::WAYS {
        sandbox.out(&format!("echo '{how}' > kept")).await;
        sandbox.pause().await.expect("the sandbox is paused");
        damage(&state_of(&host.record(&sandbox.id).expect("a record")["files"], &host.folder_of(&sandbox.id)));

        let resumed = within("the resume", sandbox.resume(None)).await;

        resumed.unwrap_or_else(|error| panic!("a state {how} keeps the sandbox from its disk: {error}"));
        assert_eq!(host.agent_view(&sandbox.id).await.unwrap().start, StartKind::Cold, "a state {how}");
        assert_eq!(sandbox.out("cat kept").await, format!("{how}\n"));
        bystander.is_unharmed(&format!("a state {how}")).await;
    }
}

async fn a_paused_sandbox_whose_memory_is_damaged_harms_nobody_else() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    for (how, damage) in damage::WAYS {
        let mut sandbox = host.sandbox().await;
        sandbox.out("echo kept > kept").await;
        sandbox.pause().await.expect("the sandbox is paused");
        damage(&memory_of(&host.record(&sandbox.id).expect("a record")["files"], &host.folder_of(&sandbox.id)));

        // It goes on, booted or with a guest that is ill, or it does not, and says so.
        let resumed = within("the resume", sandbox.resume(None)).await.map(|resumed| resumed.state);

        comes_to_rest(&sandbox.id, &format!("memory {how}; the resume came to {resumed:?}")).await;
        bystander.is_unharmed(&format!("memory {how}")).await;
        within("the delete", host.leaves_nothing(sandbox)).await;
    }
}

async fn a_paused_sandbox_whose_disk_is_damaged_harms_nobody_else() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    for (how, damage) in damage::WAYS {
        let mut sandbox = host.sandbox().await;
        sandbox.out("echo kept > kept; sync").await;
        sandbox.pause().await.expect("the sandbox is paused");
        damage(&disk_of(&host.record(&sandbox.id).expect("a record")["files"], &host.folder_of(&sandbox.id)));

        let resumed = within("the resume", sandbox.resume(None)).await.map(|resumed| resumed.state);

        comes_to_rest(&sandbox.id, &format!("a disk {how}; the resume came to {resumed:?}")).await;
        bystander.is_unharmed(&format!("a disk {how}")).await;
        within("the delete", host.leaves_nothing(sandbox)).await;
    }
}

async fn a_bit_that_flips_while_a_sandbox_is_paused_is_said_in_its_log() {
    const LINE: &str = "ballast\n";
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let mut sandbox = host.sandbox().await;
    sandbox.out("yes ballast | head -c 1048576 > ballast; sync").await;
    for life in 1..=2 {
        // The second pause comes after the damage, whose layer is below the top by then.
        sandbox.pause().await.expect("the sandbox is paused");
        let (files, folder) =
            (host.record(&sandbox.id).expect("a record")["files"].clone(), host.folder_of(&sandbox.id));
        for file in [disk_of(&files, &folder), memory_of(&files, &folder)] {
            wait_until("the agent gives the sealed file a digest", || async {
                match layers::has_digest(&file) {
                    Ok(true) => Ok(()),
                    other => Err(format!("{}: {other:?}", file.display())),
                }
            })
            .await;
        }
        if life == 1 {
            let flipped = layers::flip_bit_of(&disk_of(&files, &folder), LINE.repeat(4096 / LINE.len()).as_bytes());
            assert!(flipped.expect("the layer can be changed"), "the layer holds what the guest wrote");
        }

        sandbox.resume(None).await.expect("the sandbox is resumed");

        wait_until("the sandbox's log speaks of the damage", || async {
            let said = damage_said(&sandbox.id).await.len();
            if said == life { Ok(()) } else { Err(format!("{said} entries")) }
        })
        .await;
        assert_eq!(sandbox.out("echo well").await, "well\n");
    }
    assert_eq!(damage_said(&bystander.sandbox.id).await, [""; 0]);
    bystander.is_unharmed("a bit of another's disk flipped").await;
}

async fn a_sandbox_whose_disk_is_not_there_is_refused_and_goes_on_when_it_is_back() {
    let host = Host::shared();
    let mut sandbox = host.sandbox().await;
    sandbox.out("echo kept > kept").await;
    sandbox.pause().await.expect("the sandbox is paused");
    let disk = disk_of(&host.record(&sandbox.id).expect("a record")["files"], &host.folder_of(&sandbox.id));
    let elsewhere = host.scratch();
    let kept = elsewhere.path().join("disk");
    fs::rename(&disk, &kept).expect("the layer is moved away");

    let refused = within("the resume", sandbox.resume(None)).await.expect_err("there is no disk to go on with");

    let name = disk.file_name().expect("a name").to_string_lossy();
    let logs = host.client.logs(&sandbox.id, None).await.unwrap();
    assert!(logs.iter().any(|entry| entry.message.contains(&*name)), "{name} is named: {refused}, {logs:?}");
    assert_eq!(host.client.show(&sandbox.id).await.unwrap().state, "stopped");
    fs::rename(&kept, &disk).expect("the layer is moved back");
    sandbox.resume(None).await.expect("the sandbox is resumed");
    assert_eq!(sandbox.out("cat kept").await, "kept\n");
}

async fn a_warm_snapshot_whose_working_set_is_damaged_starts_sandboxes_all_the_same() {
    let host = Host::shared();
    host.wait_until_warm(&support::small()).await.delete().await;
    for (how, damage) in damage::WAYS {
        let sets: Vec<PathBuf> = host.warm_folders().iter().map(|folder| working_set_of(folder)).collect();
        let whole: Vec<Vec<u8>> = sets.iter().map(|path| fs::read(path).expect("a working set")).collect();
        sets.iter().for_each(|path| damage(path));

        let sandbox = host.sandbox().await;

        assert_eq!(host.agent_view(&sandbox.id).await.unwrap().start, StartKind::Warm, "a working set {how}");
        assert_eq!(sandbox.out("echo well").await, "well\n", "a working set {how}");
        let said = fs::read_to_string(host.folder_of(&sandbox.id).join("monitor.log")).expect("the monitor's log");
        assert!(said.contains("restoring without the working set"), "a working set {how}: {said:?}");
        sets.iter().zip(whole).for_each(|(path, whole)| fs::write(path, whole).expect("the set is put right"));
    }
}

async fn a_damaged_checkpoint_harms_only_what_is_started_from_it() {
    let host = Host::shared();
    let source = host.sandbox().await;
    source.out("echo kept > kept").await;
    let bystander = Bystander::new().await;
    for (part, find) in [("state", state_of as fn(&Value, &Path) -> PathBuf), ("memory", memory_of)] {
        for (how, damage) in damage::WAYS {
            let checkpoint = source.checkpoint(true).await.expect("the checkpoint is taken");
            let manifest = host.manifest(&checkpoint.id);
            damage(&find(&manifest["snapshot"]["files"], &host.checkpoint_folder(&checkpoint.id)));

            let restored = within("the restore", host.try_sandbox(&support::from_checkpoint(&checkpoint.id))).await;

            let what = format!("a checkpoint whose {part} is {how}");
            if let Ok(restored) = restored {
                comes_to_rest(&restored.id, &what).await;
                within("the delete", host.leaves_nothing(restored)).await;
            }
            assert_eq!(source.out("cat kept").await, "kept\n", "{what}");
            bystander.is_unharmed(&what).await;
        }
    }
}

/// A sandbox that has nothing to do with it, and the agent.
struct Bystander {
    sandbox: Sandbox,
    agent: Option<Pid>,
}

impl Bystander {
    async fn new() -> Self {
        let host = Host::shared();
        Self { sandbox: host.sandbox().await, agent: host.agent_pid() }
    }

    /// Panics unless the host goes on as before.
    async fn is_unharmed(&self, what: &str) {
        let host = Host::shared();
        assert_eq!(host.agent_pid(), self.agent, "{what}: another agent runs");
        assert_eq!(self.sandbox.out("echo well").await, "well\n", "{what}");
        host.sandbox().await.delete().await;
    }
}

/// What the log of a sandbox says of damaged files.
async fn damage_said(id: &str) -> Vec<String> {
    let logs = Host::shared().client.logs(id, None).await.expect("the sandbox's log");
    logs.into_iter().map(|entry| entry.message).filter(|message| message.contains("is damaged")).collect()
}

/// Waits until a sandbox that may be ill is in a state that lasts.
async fn comes_to_rest(id: &str, what: &str) {
    let host = Host::shared();
    wait_until(what, || async {
        let state = host.client.show(id).await.map_err(|error| error.to_string())?.state;
        if ["ready", "stopped", "failed"].contains(&state.as_str()) { Ok(()) } else { Err(format!("it is {state}")) }
    })
    .await;
}

/// The state among the files of a snapshot in `folder`.
fn state_of(files: &Value, folder: &Path) -> PathBuf {
    folder.join(files["state"].as_str().unwrap_or_else(|| panic!("a state in {files}")))
}

/// The disk layer that was written last.
fn disk_of(files: &Value, folder: &Path) -> PathBuf {
    let top = files["disk"].as_array().and_then(|layers| layers.last());
    folder.join(top.and_then(|layer| layer["name"].as_str()).unwrap_or_else(|| panic!("disk layers in {files}")))
}

/// The working set of a warm snapshot.
fn working_set_of(folder: &Path) -> PathBuf {
    let manifest: Value = serde_json::from_slice(&fs::read(folder.join("manifest.json")).expect("a manifest")).unwrap();
    let name = manifest["snapshot"]["files"]["working_set"].as_str();
    folder.join(name.unwrap_or_else(|| panic!("a working set in {manifest}")))
}

/// The memory layer that was written last.
fn memory_of(files: &Value, folder: &Path) -> PathBuf {
    let top = files["memory"].as_array().and_then(|layers| layers.last());
    folder.join(top.and_then(|layer| layer["name"].as_str()).unwrap_or_else(|| panic!("memory layers in {files}")))
}
