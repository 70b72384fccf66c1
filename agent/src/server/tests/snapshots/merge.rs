//! Merges in the background.

use super::*;
use sandpiper_images::layers::{Files, Layer, Role};
use sandpiper_images::snapshots::{Manifest, Snapshot};
use sandpiper_protocol::ids::CheckpointId;

/// A checkpoint with a chain that is too long.
fn long_checkpoint(agent: &Agent, id: &CheckpointId) {
    let store = &agent.sandboxes.context().checkpoints;
    let draft = store.draft(id).unwrap();
    let mut files = Files::default();
    files.disk = (0..12).map(|_| Layer::own(files.new_name(Role::Disk))).collect();
    for name in files.names() {
        fs::write(draft.folder().join(name), [1; 4096]).unwrap();
    }
    let snapshot = Snapshot {
        template_version: "ver1".into(),
        cpu: 1,
        memory_mb: 256,
        disk_gib: 2,
        files,
        held_slots: Vec::new(),
        defaults: Default::default(),
        can_wait: false,
    };
    store.publish(draft, Manifest::new(id.clone(), "sbx1".into(), 4, 700, snapshot)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_cannot_proceed_holds_up_no_other() {
    let agent = Agent::start("exit 1").await;
    let store = agent.sandboxes.context().checkpoints.clone();
    let layers = |id: &CheckpointId| store.find(id).unwrap().snapshot.files.disk.len();
    let mut ids = [CheckpointId::generate(), CheckpointId::generate()];
    // The first in the list is looked at first.
    ids.sort();
    let [busy, idle] = ids;
    long_checkpoint(&agent, &busy);
    let pin = store.pin(&busy).unwrap();
    long_checkpoint(&agent, &idle);

    agent.sandboxes.context().changed.send_replace(());

    eventually(|| layers(&idle) == 8).await;
    assert_eq!(layers(&busy), 12);
    drop(pin);
    agent.end().await;
}
