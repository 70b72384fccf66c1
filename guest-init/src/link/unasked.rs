//! What the guest tells the host without being asked: lines of its own log, and what processes write.

use std::future::pending;

use sandpiper_protocol::guest::GuestMessage;
use tokio::sync::mpsc;

use crate::capture::{Batch, Capture};

/// Where the link gets it from.
pub(crate) struct Unasked {
    log: mpsc::Receiver<GuestMessage>,
    capture: Capture,
}

impl Unasked {
    pub(crate) fn new(log: mpsc::Receiver<GuestMessage>, capture: Capture) -> Self {
        Self { log, capture }
    }

    /// The next message; of what processes write only if it `tells_output`. Cancelling loses nothing.
    pub(super) async fn next(&mut self, tells_output: bool) -> GuestMessage {
        tokio::select! {
            Some(message) = self.log.recv() => message,
            batch = self.capture.batch(), if tells_output => batch.into(),
            // Nobody is left who could say anything.
            else => pending().await,
        }
    }

    /// What processes have written until now, or the beginning of it.
    pub(super) fn last_output(&self) -> Vec<GuestMessage> {
        self.capture.last_batches().into_iter().map(Batch::into).collect()
    }

    /// Notes that the host was not told this.
    pub(super) fn not_told(&self, message: &GuestMessage) {
        if let GuestMessage::Output { lines, left_out } = message {
            self.capture.leave_out(left_out.saturating_add(lines.len() as u64));
        }
    }
}
