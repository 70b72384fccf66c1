//! One machine that waits for a sandbox.

use futures_util::FutureExt;
use sandpiper_durable as durable;
use sandpiper_images::layers::Files;
use sandpiper_machine::process::KnownMonitor;
use sandpiper_machine::{MachineEvent, MachinePaths};
use sandpiper_protocol::guest::GuestMessage;

use crate::launch::{Launcher, Running};

/// A machine that waits for a sandbox. It is not dropped but [ended](Self::end), or given to one.
pub(crate) struct Parked {
    /// It holds no reservation, and has no volumes.
    pub(crate) running: Running,
    pub(crate) monitor: KnownMonitor,
    /// What is in its folder.
    pub(crate) files: Files,
    pub(crate) paths: MachinePaths,
}

impl Parked {
    /// Whether nobody should use it any more. One that opens its link anew while it waits is told once more that it is nobody's,
    /// and its answer to that must not be taken for one to its owner.
    pub(super) fn has_ended(&mut self) -> bool {
        let mut events = std::iter::from_fn(|| self.running.machine.next().now_or_never());
        events.any(|event| {
            matches!(
                event,
                MachineEvent::Ended(_)
                    | MachineEvent::OutOfControl
                    | MachineEvent::LinkOpened
                    | MachineEvent::Disk(_)
                    | MachineEvent::Guest(GuestMessage::Failed { .. })
            )
        })
    }

    /// Ends it, and removes its files.
    pub(crate) async fn end(self, launcher: &Launcher) {
        if let Err(error) = self.running.end(launcher).await {
            tracing::error!(monitor = self.monitor.id, %error, "cannot end a parked machine; kill its monitor by hand");
        }
        remove(self.paths).await;
    }
}

/// Removes what a machine that has ended leaves.
pub(crate) async fn remove(paths: MachinePaths) {
    if let Err(error) = durable::blocking(move || paths.remove()).await {
        tracing::warn!(%error, "cannot remove a parked machine's files now; the next start will");
    }
}
