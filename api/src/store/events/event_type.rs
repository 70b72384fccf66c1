//! What events tell of.

use std::fmt;
use std::str::FromStr;

/// What kind of thing an event happened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    Sandbox,
    Checkpoint,
    /// Of a template's version, whose id it has.
    Build,
    Volume,
}

impl ResourceKind {
    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ResourceKind::Sandbox => "sandbox",
            ResourceKind::Checkpoint => "checkpoint",
            ResourceKind::Build => "build",
            ResourceKind::Volume => "volume",
        }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// It was asked for, and is `creating`.
    SandboxCreated,
    /// It has started for the first time.
    SandboxReady,
    /// It was stopped, by a request or at its deadline.
    SandboxPaused,
    /// It has started again.
    SandboxResumed,
    /// Its machine ended unasked; it is stopped, and has its disk.
    SandboxCrashed,
    /// It never became ready.
    SandboxFailed,
    SandboxDeleted,
    /// It is taken, and ready.
    CheckpointCreated,
    /// It could not be taken, which came out after the response had been sent.
    CheckpointFailed,
    /// The host does not have it any more.
    CheckpointLost,
    /// The host has it again.
    CheckpointFound,
    CheckpointDeleted,
    /// The host has begun it.
    BuildStarted,
    BuildReady,
    BuildFailed,
    BuildCancelled,
    /// It is made, and ready.
    VolumeCreated,
    /// The host does not have it any more.
    VolumeLost,
    /// The host has it again.
    VolumeFound,
    VolumeDeleted,
}

impl EventType {
    pub const ALL: [EventType; 20] = [
        EventType::SandboxCreated,
        EventType::SandboxReady,
        EventType::SandboxPaused,
        EventType::SandboxResumed,
        EventType::SandboxCrashed,
        EventType::SandboxFailed,
        EventType::SandboxDeleted,
        EventType::CheckpointCreated,
        EventType::CheckpointFailed,
        EventType::CheckpointLost,
        EventType::CheckpointFound,
        EventType::CheckpointDeleted,
        EventType::BuildStarted,
        EventType::BuildReady,
        EventType::BuildFailed,
        EventType::BuildCancelled,
        EventType::VolumeCreated,
        EventType::VolumeLost,
        EventType::VolumeFound,
        EventType::VolumeDeleted,
    ];

    /// Its name in JSON and in the database: the kind of the resource, and what happened to it.
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::SandboxCreated => "sandbox.created",
            EventType::SandboxReady => "sandbox.ready",
            EventType::SandboxPaused => "sandbox.paused",
            EventType::SandboxResumed => "sandbox.resumed",
            EventType::SandboxCrashed => "sandbox.crashed",
            EventType::SandboxFailed => "sandbox.failed",
            EventType::SandboxDeleted => "sandbox.deleted",
            EventType::CheckpointCreated => "checkpoint.created",
            EventType::CheckpointFailed => "checkpoint.failed",
            EventType::CheckpointLost => "checkpoint.lost",
            EventType::CheckpointFound => "checkpoint.found",
            EventType::CheckpointDeleted => "checkpoint.deleted",
            EventType::BuildStarted => "build.started",
            EventType::BuildReady => "build.ready",
            EventType::BuildFailed => "build.failed",
            EventType::BuildCancelled => "build.cancelled",
            EventType::VolumeCreated => "volume.created",
            EventType::VolumeLost => "volume.lost",
            EventType::VolumeFound => "volume.found",
            EventType::VolumeDeleted => "volume.deleted",
        }
    }

    /// What it happens to.
    pub fn resource_kind(self) -> ResourceKind {
        match self {
            EventType::SandboxCreated
            | EventType::SandboxReady
            | EventType::SandboxPaused
            | EventType::SandboxResumed
            | EventType::SandboxCrashed
            | EventType::SandboxFailed
            | EventType::SandboxDeleted => ResourceKind::Sandbox,
            EventType::CheckpointCreated
            | EventType::CheckpointFailed
            | EventType::CheckpointLost
            | EventType::CheckpointFound
            | EventType::CheckpointDeleted => ResourceKind::Checkpoint,
            EventType::BuildStarted | EventType::BuildReady | EventType::BuildFailed | EventType::BuildCancelled => {
                ResourceKind::Build
            }
            EventType::VolumeCreated | EventType::VolumeLost | EventType::VolumeFound | EventType::VolumeDeleted => {
                ResourceKind::Volume
            }
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EventType {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|one| one.as_str() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_with_the_kind_of_the_resource_and_is_read_back() {
        for one in EventType::ALL {
            assert!(one.as_str().starts_with(&format!("{}.", one.resource_kind().as_str())), "{one}");
            assert_eq!(one.as_str().parse(), Ok(one));
        }
    }
}
