//! Starts of the kind that a result says: one of the other kind among them ends the run.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::{self, StartKind};
use sandpiper_protocol::process::ProcessEvent;
use support::{Host, Sandbox, shell};

use crate::report::elapsed;

/// Before a start, so that what the one before it left to be done is done, as on a host that was left alone.
const REST: Duration = Duration::from_secs(5);

/// A new sandbox, and how long its caller waited.
pub(crate) struct Start {
    pub(crate) sandbox: Sandbox,
    /// Milliseconds from the create call to its response.
    pub(crate) created: f64,
    /// From the create call to the first byte of a command's output.
    pub(crate) first_output: f64,
}

/// Waits until the host is as one that was left alone.
pub(crate) async fn rest() {
    tokio::time::sleep(REST).await;
}

/// Creates a sandbox, which must be started this way, and runs a command in it.
pub(crate) async fn timed(request: &CreateSandbox, kind: StartKind) -> anyhow::Result<Start> {
    let start = timed_unchecked(request).await?;
    check(&start.sandbox, kind).await?;
    Ok(start)
}

/// Likewise, for many at once: what checks them takes its time from those that are not done. They are to be
/// [checked](check) afterwards.
pub(crate) async fn timed_unchecked(request: &CreateSandbox) -> anyhow::Result<Start> {
    let begin = Instant::now();
    let sandbox = Host::shared().try_sandbox(request).await?;
    let created = elapsed(begin);
    let mut stream = sandbox.data_plane.start(&shell("echo ready", None)).await?;
    while !matches!(stream.next().await?.context("the output ended before it began")?, ProcessEvent::Data(_)) {}
    let first_output = elapsed(begin);
    Ok(Start { sandbox, created, first_output })
}

/// What the agent says of a sandbox, whose last start must have been of this kind, and not from a bare snapshot.
pub(crate) async fn check(sandbox: &Sandbox, kind: StartKind) -> anyhow::Result<agent::Sandbox> {
    let view = Host::shared().agent_view(&sandbox.id).await?;
    ensure!(
        view.start == kind && !view.is_bare,
        "a start was {:?}, not {kind:?}: its result would not be what it says",
        view.start
    );
    Ok(view)
}

/// Likewise, of one from a bare snapshot.
pub(crate) async fn check_bare(sandbox: &Sandbox) -> anyhow::Result<agent::Sandbox> {
    let view = Host::shared().agent_view(&sandbox.id).await?;
    ensure!(
        view.is_bare,
        "a start was {:?}, not from a bare snapshot: its result would not be what it says",
        view.start
    );
    Ok(view)
}
