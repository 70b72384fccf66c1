//! Snapshots whose files were damaged: they harm nobody but those who are started from them.

use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use sandpiper_protocol::agent::StartKind;
use serde_json::Value;
use support::{Host, Sandbox, layers, wait_until, within};

tests! {
    shared: [
        a_sandbox_whose_state_is_damaged_boots_from_its_disk,
        a_paused_sandbox_whose_memory_is_damaged_harms_nobody_else,
        a_damaged_checkpoint_harms_only_what_is_started_from_it,
    ],
    alone: [],
}

/// How a file is damaged: what is done to it, in words, and doing it.
const DAMAGES: [(&str, fn(&Path)); 2] = [
    ("with bits flipped", |path| {
        let flipped = layers::flip_bits(path, 512).expect("the file can be changed");
        assert!(flipped > 0, "{} has no data", path.display());
    }),
    ("cut in half", |path| layers::truncate(path).expect("the file can be cut")),
];

async fn a_sandbox_whose_state_is_damaged_boots_from_its_disk() {
    let host = Host::shared();
    let bystander = Bystander::new().await;
    let mut sandbox = host.sandbox().await;
    for (how, damage) in DAMAGES {
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
    for (how, damage) in DAMAGES {
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

async fn a_damaged_checkpoint_harms_only_what_is_started_from_it() {
    let host = Host::shared();
    let source = host.sandbox().await;
    source.out("echo kept > kept").await;
    let bystander = Bystander::new().await;
    for (part, find) in [("state", state_of as fn(&Value, &Path) -> PathBuf), ("memory", memory_of)] {
        for (how, damage) in DAMAGES {
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

/// The memory layer that was written last.
fn memory_of(files: &Value, folder: &Path) -> PathBuf {
    let top = files["memory"].as_array().and_then(|layers| layers.last());
    folder.join(top.and_then(|layer| layer["name"].as_str()).unwrap_or_else(|| panic!("memory layers in {files}")))
}
