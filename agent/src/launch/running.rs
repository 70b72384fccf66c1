//! A machine, and what it holds of the host.

use std::io;

use sandpiper_machine::Machine;
use sandpiper_machine::console::Console;
use sandpiper_network::Attachment;

use super::{Attachments, Launcher, network};
use crate::capacity::Reservation;

/// A machine that runs, or is about to, with all that goes when it does. It is not dropped but [ended](Self::end), unless
/// the agent leaves it to the next one.
pub(crate) struct Running {
    pub(crate) machine: Machine,
    /// Its network slot; `None` on a host whose sandboxes have no network.
    pub(crate) network: Option<Attachment>,
    /// What it holds of the host's memory, and of what its team may hold here.
    pub(crate) reservation: Reservation,
    /// Follows the guest's console, where it has one.
    pub(crate) console: Option<Console>,
    /// Free for others once the monitor is gone.
    pub(crate) volumes: Attachments,
}

impl Running {
    /// Ends the monitor and frees what the machine held.
    ///
    /// # Errors
    /// The monitor cannot be ended: it may live, so its user id stays taken. All else is freed.
    pub(crate) async fn end(self, launcher: &Launcher) -> io::Result<()> {
        // The reservation last: until then the memory may be in use.
        let Self { machine, network, console, reservation, mut volumes } = self;
        let ended = match machine.end(launcher.config.stop_timeout()).await {
            Ok(known) => {
                launcher.pool.release(&known).await;
                volumes.release().await;
                Ok(())
            }
            Err(error) => {
                volumes.withhold();
                Err(error)
            }
        };
        // After the monitor, which has the tap.
        network::detach(network).await;
        if let Some(console) = console {
            // So that the last words are in the log before the file goes.
            console.finish().await;
        }
        drop(reservation);
        ended
    }
}
