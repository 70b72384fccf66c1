//! An agent that is killed between two steps of an operation, wherever that is: the next one finishes the operation or undoes
//! it, the sandbox goes on with its memory and disk, and nothing leaks.

use sandpiper_protocol::id;
use serde_json::{Value, json};

use crate::host::{Agent, Host};
use sandpiper_crash_points::CrashPoint;

/// What is asked of the agent when it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    /// A create from a checkpoint.
    Restore,
    Fork,
    Pause,
    Resume,
    /// With memory, of a running sandbox.
    Checkpoint,
    /// Of the disk alone.
    DiskCheckpoint,
    /// Of a sandbox that is stopped.
    StoppedCheckpoint,
    DeleteCheckpoint,
    Delete,
    DeleteStopped,
    CreateVolume,
    DeleteVolume,
    /// A version of a checkpoint's disk.
    Build,
    /// One that a machine makes.
    BuildImage,
    /// Of a version that the sandbox was started from.
    DeleteTemplate,
    Upload,
    DeleteUpload,
    /// A create with a volume that nobody has had.
    CreateMounted,
    /// Of a sandbox with a volume.
    PauseMounted,
    /// With memory, of a sandbox with a volume.
    CheckpointMounted,
}

/// What the next agent makes of an operation that nobody was told the end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Undone,
    Done,
}

/// What is there before the operation, and what the operation makes.
struct Scene {
    /// The sandbox that the operation is about, or that is there beside it.
    sandbox: String,
    checkpoint: Option<String>,
    /// The volume that the operation is about.
    volume: Option<String>,
    /// Id of what is made.
    new: String,
    /// How often the sandbox's guest was told who it is.
    told: u64,
    method: &'static str,
    path: String,
    body: Value,
}

impl Operation {
    async fn arrange(self, agent: &Agent<'_>) -> Scene {
        let mut request = agent.create_request().await;
        let mut volume = match self {
            Self::DeleteVolume | Self::CreateMounted | Self::PauseMounted | Self::CheckpointMounted => {
                Some(agent.volume().await)
            }
            _ => None,
        };
        let mounts = json!([{"volume": volume, "path": "/data"}]);
        if matches!(self, Self::PauseMounted | Self::CheckpointMounted) {
            request["volume_mounts"] = mounts.clone();
        }
        let version = match self {
            Self::DeleteTemplate => Some(agent.version(&request).await),
            _ => None,
        };
        if let Some(version) = &version {
            request["template_version"] = json!(version);
        }
        let sandbox = agent.get("POST", "/sandboxes", request.clone()).await;
        if self == Self::CreateMounted {
            request["volume_mounts"] = mounts;
        }
        let sandbox = sandbox["sandbox"]["id"].as_str().unwrap().to_owned();
        let path = format!("/sandboxes/{sandbox}");
        let checkpoint = if matches!(self, Self::Restore | Self::DeleteCheckpoint | Self::Build) {
            let order = json!({"id": id::generate("ckp"), "memory": true});
            let taken = agent.get("POST", &format!("{path}/checkpoints"), order).await;
            Some(taken["id"].as_str().unwrap().to_owned())
        } else {
            None
        };
        if matches!(self, Self::Resume | Self::StoppedCheckpoint | Self::DeleteStopped) {
            agent.get("POST", &format!("{path}/pause"), Value::Null).await;
        }
        let told = agent.host.told(&sandbox);

        let is_checkpoint =
            matches!(self, Self::Checkpoint | Self::DiskCheckpoint | Self::StoppedCheckpoint | Self::CheckpointMounted);
        let new = match self {
            Self::CreateVolume => "vol",
            Self::Build | Self::BuildImage => "ver",
            Self::Upload | Self::DeleteUpload => "upl",
            _ if is_checkpoint => "ckp",
            _ => "sbx",
        };
        let new = id::generate(new);
        if self == Self::DeleteUpload {
            agent.get("PUT", &format!("/uploads/{new}"), json!("a context")).await;
        }
        if self == Self::CreateVolume {
            volume = Some(new.clone());
        }
        let source = match self {
            Self::BuildImage => json!({"kind": "image", "reference": "registry.example/app"}),
            _ => json!({"kind": "checkpoint", "checkpoint": checkpoint}),
        };
        let build = agent.build_of(&new, source);
        if self == Self::BuildImage {
            agent.import("builder").await;
        }
        request["id"] = json!(new);
        request["checkpoint"] = json!(checkpoint);
        let (method, path, body) = match self {
            Self::Create | Self::Restore | Self::CreateMounted => ("POST", "/sandboxes".to_owned(), request),
            Self::Fork => ("POST", format!("{path}/fork"), json!({"ids": [new]})),
            Self::Pause | Self::PauseMounted => ("POST", format!("{path}/pause"), Value::Null),
            Self::Resume => ("POST", format!("{path}/resume"), json!({})),
            Self::Checkpoint | Self::DiskCheckpoint | Self::StoppedCheckpoint | Self::CheckpointMounted => {
                let order = json!({"id": new, "memory": self != Self::DiskCheckpoint});
                ("POST", format!("{path}/checkpoints"), order)
            }
            Self::DeleteCheckpoint => ("DELETE", format!("/checkpoints/{}", checkpoint.as_ref().unwrap()), Value::Null),
            Self::Delete | Self::DeleteStopped => ("DELETE", path, Value::Null),
            Self::Build | Self::BuildImage => ("POST", "/builds".to_owned(), build),
            Self::Upload => ("PUT", format!("/uploads/{new}"), json!("a context")),
            Self::DeleteUpload => ("DELETE", format!("/uploads/{new}"), Value::Null),
            Self::DeleteTemplate => ("DELETE", format!("/templates/{}", version.unwrap()), Value::Null),
            Self::CreateVolume => ("PUT", format!("/volumes/{new}"), Value::Null),
            Self::DeleteVolume => ("DELETE", format!("/volumes/{}", volume.as_ref().unwrap()), Value::Null),
        };
        Scene { sandbox, checkpoint, volume, new, told, method, path, body }
    }

    /// What the sandbox must be now.
    fn state(self, outcome: Outcome) -> Option<&'static str> {
        match (self, outcome) {
            (Self::Delete | Self::DeleteStopped, _) => None,
            (Self::Pause | Self::PauseMounted, Outcome::Done)
            | (Self::Resume, Outcome::Undone)
            | (Self::StoppedCheckpoint, _) => Some("stopped"),
            _ => Some("ready"),
        }
    }

    /// Whether there must be what was to be made, or, of a checkpoint that was to be deleted, still is.
    fn makes(self, outcome: Outcome) -> bool {
        let makes = !matches!(
            self,
            Self::Pause | Self::PauseMounted | Self::Resume | Self::Delete | Self::DeleteStopped | Self::DeleteVolume
        );
        outcome == Outcome::Done && makes
    }

    /// Who must have the volume now, if it is there: one that lives, or nobody.
    fn holder(self, outcome: Outcome, scene: &Scene) -> Option<&str> {
        match (self, outcome) {
            (Self::CreateMounted, Outcome::Done) => Some(&scene.new),
            (Self::PauseMounted, Outcome::Undone) | (Self::CheckpointMounted, _) => Some(&scene.sandbox),
            _ => None,
        }
    }
}

/// Has the agent die at `point` of `operation`, and looks at what the next one makes of it.
async fn kill_at(operation: Operation, point: CrashPoint, outcome: Outcome) {
    let Some(host) = Host::new() else { return };
    let agent = host.start().await;
    let scene = operation.arrange(&agent).await;

    host.arm(point);
    let answer = agent.ask(scene.method, &scene.path, &scene.body).await;
    agent.was_killed().await;
    if let Ok((status, body)) = answer {
        assert!((200..300).contains(&status) && outcome == Outcome::Done, "{status} {body}");
    }

    let agent = host.start().await;
    assert_eq!(agent.rests(&scene.sandbox).await.as_deref(), operation.state(outcome), "{}", host.log());
    agent.counts_what_runs().await;
    if let Some(volume) = &scene.volume {
        let is_there = match operation {
            Operation::CreateVolume => outcome == Outcome::Done,
            operation => operation != Operation::DeleteVolume,
        };
        let (status, found) = agent.ask("GET", &format!("/volumes/{volume}"), &Value::Null).await.unwrap();
        assert_eq!(status, if is_there { 200 } else { 404 }, "{found}\n{}", host.log());
        let holder = operation.holder(outcome, &scene);
        assert_eq!(found["attached_to"].as_str(), holder, "{}", host.log());
        if let Some(holder) = holder {
            assert!(host.has_open(holder, &format!("state/volumes/{volume}/data.layer")), "{}", host.log());
        }
    }
    if operation.state(outcome).is_some() {
        // Between the record that names a new top layer and the monitor's word that it has it, nobody knows which is written to.
        let is_unsettled = matches!(
            point,
            CrashPoint::CheckpointRecorded
                | CrashPoint::CheckpointFrozen
                | CrashPoint::CheckpointSwitched
                | CrashPoint::CheckpointThawed
        ) || operation == Operation::CheckpointMounted
            && matches!(
                point,
                CrashPoint::VolumesUnmounted
                    | CrashPoint::VolumesDetached
                    | CrashPoint::VolumeRecorded
                    | CrashPoint::VolumesRemounted
            );
        // Its files are linked while that is written down.
        if !matches!(point, CrashPoint::CheckpointLinked | CrashPoint::CheckpointSynced) {
            assert_eq!(host.record(&scene.sandbox)["unsettled"].is_string(), is_unsettled, "{}", host.log());
        }
        goes_on(&agent, &scene.sandbox, scene.told).await;
    }
    match &scene.checkpoint {
        Some(checkpoint) => {
            let is_there = operation != Operation::DeleteCheckpoint || outcome == Outcome::Undone;
            can_be_restored(&agent, checkpoint, is_there).await;
        }
        None if scene.new.starts_with("ckp") => {
            can_be_restored(&agent, &scene.new, operation.makes(outcome)).await;
        }
        None => {}
    }
    if operation == Operation::Build {
        assert_eq!(agent.built(&scene.new).await["state"], "ready", "{}", host.log());
        let mut request = agent.create_request().await;
        request["template_version"] = json!(scene.new);
        let made = agent.get("POST", "/sandboxes", request).await;
        goes_on(&agent, made["sandbox"]["id"].as_str().unwrap(), 0).await;
    } else if operation == Operation::BuildImage {
        let build = agent.built(&scene.new).await;
        assert_eq!(build["error"]["code"], "host_restarted", "{build}\n{}", host.log());
        assert!(agent.versions_of_teams().await.is_empty());
    } else if scene.new.starts_with("upl") {
        let is_there = operation == Operation::Upload && outcome == Outcome::Done;
        let (status, found) = agent.ask("GET", &format!("/uploads/{}", scene.new), &Value::Null).await.unwrap();
        assert_eq!(status, if is_there { 200 } else { 404 }, "{found}\n{}", host.log());
    } else if operation == Operation::DeleteTemplate {
        assert!(agent.versions_of_teams().await.is_empty(), "{}", host.log());
    } else if scene.new.starts_with("sbx") {
        let expected = operation.makes(outcome) && operation != Operation::DeleteCheckpoint;
        assert_eq!(agent.state(&scene.new).await.as_deref(), expected.then_some("ready"), "{}", host.log());
        if expected {
            let told = if operation == Operation::Create { 0 } else { scene.told };
            goes_on(&agent, &scene.new, told).await;
        }
    }
    agent.leave_nothing().await;
}

/// The sandbox can be paused and resumed, and has what was in its memory and on its disk: without either, its guest would count
/// from the beginning.
async fn goes_on(agent: &Agent<'_>, id: &str, told: u64) {
    let path = format!("/sandboxes/{id}");
    if agent.state(id).await.as_deref() == Some("ready") {
        agent.told_more_than(id, told).await;
        agent.get("POST", &format!("{path}/pause"), Value::Null).await;
    }
    let told = agent.host.told(id);
    let resumed = agent.get("POST", &format!("{path}/resume"), json!({})).await;
    assert_eq!(resumed["sandbox"]["start"], "restored", "{}", agent.host.log());
    assert!(agent.host.record(id)["unsettled"].is_null());
    agent.told_more_than(id, told).await;
}

/// The checkpoint is there and whole, or is not there at all.
async fn can_be_restored(agent: &Agent<'_>, checkpoint: &str, is_there: bool) {
    let (status, found) = agent.ask("GET", &format!("/checkpoints/{checkpoint}"), &Value::Null).await.unwrap();
    assert_eq!(status, if is_there { 200 } else { 404 }, "{found}\n{}", agent.host.log());
    if is_there {
        let mut request = agent.create_request().await;
        request["checkpoint"] = json!(checkpoint);
        let created = agent.get("POST", "/sandboxes", request).await;
        let start = if found["memory"] == true { "restored" } else { "cold" };
        assert_eq!(created["sandbox"]["start"], start);
    }
}

/// One test for each operation and each point that it passes, and the list of both.
macro_rules! kill_points {
    ($($operation:ident in $module:ident {
        $($outcome:ident: $($test:ident at $point:ident),+;)+
    })+) => {
        const TESTED: &[CrashPoint] = &[$($($(CrashPoint::$point,)+)+)+];

        $(mod $module {
            use super::*;

            $($(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    kill_at(Operation::$operation, CrashPoint::$point, Outcome::$outcome).await;
                }
            )+)+
        })+
    };
}

kill_points! {
    Create in create {
        Undone: files_made at StartFilesMade, monitor_moved at StartMonitorMoved, recorded at StartRecorded,
            running at StartRunning, guest_ready at StartGuestReady;
        Done: ready at StartReady;
    }
    Restore in restore {
        Undone: files_made at StartFilesMade, monitor_moved at StartMonitorMoved, recorded at StartRecorded,
            running at StartRunning, guest_ready at StartGuestReady;
        Done: record_ended at RecordEnded, ready at StartReady;
    }
    Fork in fork {
        Undone: drafted at CheckpointDrafted, checkpoint_files_made at CheckpointFilesMade, copied at CheckpointCopied,
            checkpoint_recorded at CheckpointRecorded, frozen at CheckpointFrozen, switched at CheckpointSwitched,
            thawed at CheckpointThawed, linked at CheckpointLinked, synced at CheckpointSynced,
            source_ready at CheckpointReady, written at ForkWritten,
            files_made at StartFilesMade, monitor_moved at StartMonitorMoved, recorded at StartRecorded,
            running at StartRunning, guest_ready at StartGuestReady;
        Done: record_ended at RecordEnded, ready at StartReady, made at ForkMade, cleaned at ForkCleaned;
    }
    Pause in pause {
        Undone: recorded at PauseRecorded, frozen at PauseFrozen, files_made at PauseFilesMade,
            written at PauseWritten, synced at PauseSynced;
        Done: record_ended at RecordEnded, stopped at PauseStopped, monitor_ended at PauseMonitorEnded;
    }
    Resume in resume {
        Undone: files_made at StartFilesMade, monitor_moved at StartMonitorMoved, recorded at StartRecorded,
            running at StartRunning, guest_ready at StartGuestReady;
        Done: record_ended at RecordEnded, ready at StartReady;
    }
    Checkpoint in checkpoint {
        Undone: drafted at CheckpointDrafted, files_made at CheckpointFilesMade, copied at CheckpointCopied,
            recorded at CheckpointRecorded, frozen at CheckpointFrozen, switched at CheckpointSwitched, thawed at CheckpointThawed,
            linked at CheckpointLinked, synced at CheckpointSynced, ready at CheckpointReady,
            manifest at CheckpointManifest;
        Done: published at CheckpointPublished;
    }
    DiskCheckpoint in disk_checkpoint {
        Undone: recorded at CheckpointRecorded, frozen at CheckpointFrozen, switched at CheckpointSwitched,
            thawed at CheckpointThawed, linked at CheckpointLinked, synced at CheckpointSynced,
            manifest at CheckpointManifest;
        Done: published at CheckpointPublished;
    }
    StoppedCheckpoint in stopped_checkpoint {
        Undone: drafted at CheckpointDrafted, linked at CheckpointLinked, synced at CheckpointSynced,
            manifest at CheckpointManifest;
        Done: published at CheckpointPublished;
    }
    DeleteCheckpoint in delete_checkpoint {
        Done: hidden at CheckpointHidden, removed at CheckpointRemoved;
    }
    Delete in delete {
        Done: recorded at DeleteRecorded, monitor_ended at DeleteMonitorEnded, counted at DeleteCounted,
            sockets_removed at DeleteSocketsRemoved, removed at DeleteRemoved;
    }
    Build in build {
        Done: recorded at BuildRecorded, made at VersionMade, published at VersionPublished, warming at BuildWarming,
            released at VersionReleased, ended at BuildEnded;
    }
    BuildImage in build_image {
        Done: running at BuilderRunning, cache_formatted at CacheFormatted, mounted at BuilderMounted;
    }
    DeleteTemplate in delete_template {
        Done: hidden at VersionHidden, removed at VersionRemoved;
    }
    Upload in upload {
        Undone: written at UploadWritten;
        Done: published at UploadPublished;
    }
    DeleteUpload in delete_upload {
        Done: hidden at UploadHidden;
    }
    CreateVolume in create_volume {
        Undone: made at VolumeMade;
        Done: published at VolumePublished;
    }
    DeleteVolume in delete_volume {
        Done: hidden at VolumeHidden, removed at VolumeRemoved;
    }
    CreateMounted in create_mounted {
        Undone: blank_formatted at BlankFormatted, running at StartRunning, volume_recorded at VolumeRecorded,
            attached at VolumesAttached, guest_ready at StartGuestReady;
        Done: ready at StartReady;
    }
    PauseMounted in pause_mounted {
        Undone: unmounted at VolumesUnmounted, detached at VolumesDetached, frozen at PauseFrozen, synced at PauseSynced;
        Done: stopped at PauseStopped, released at VolumeReleased;
    }
    CheckpointMounted in checkpoint_mounted {
        Undone: unmounted at VolumesUnmounted, detached at VolumesDetached, synced at CheckpointSynced,
            recorded_again at VolumeRecorded, remounted at VolumesRemounted, manifest at CheckpointManifest;
    }
    DeleteStopped in delete_stopped {
        Done: recorded at DeleteRecorded, sockets_removed at DeleteSocketsRemoved, removed at DeleteRemoved;
    }
}

#[test]
fn every_crash_point_has_a_test() {
    let untested: Vec<_> = CrashPoint::ALL.iter().filter(|point| !TESTED.contains(point)).collect();
    assert!(untested.is_empty(), "add these to the list above: {untested:?}");
}
