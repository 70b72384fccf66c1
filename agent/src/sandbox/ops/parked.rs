//! How a sandbox takes over a machine that was parked.

use std::io;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_machine::link::Envs;
use sandpiper_network::{AttachError, Attachment, Slot};
use sandpiper_protocol::error_chain;
use sandpiper_trace as trace;
use tokio::time::Instant;
use tracing::Instrument;

use super::start::{Attempt, Begin, Failed, Start, Way, write_record};
use crate::capacity::Reservation;
use crate::launch::Running;
use crate::parking::{self, Kind, Parked};
use crate::sandbox::start_error::StartError;
use crate::sandbox::supervisor::Supervisor;

impl Supervisor {
    /// A machine that waits for a sandbox such as this one, which `attempt` would start. Only one from a warm snapshot has its
    /// disk: of a bare one none is parked.
    pub(super) fn claim_parked(&self, attempt: &Attempt) -> Option<Parked> {
        let (record, (net_limits, disk_limits)) = (self.record(), self.device_limits());
        let warm = attempt.warm.clone().filter(|_| attempt.way == Way::Warm)?;
        self.context.parking.claim(&Kind { warm, memory_mb: record.memory_mb, net_limits, disk_limits })
    }

    /// Makes a parked machine the sandbox's, and waits until its guest is ready, at most for `timeout`. On failure the machine
    /// comes back, to be taken away.
    pub(super) async fn take_over(
        &mut self,
        parked: Parked,
        envs: &Envs,
        reservation: &Reservation,
        timeout: Duration,
    ) -> Result<Running, Failed> {
        let (asked_at_us, give_up_at) = (trace::now_us(), Instant::now() + timeout);
        let volumes = match self.claim_volumes_in_time(Way::Parked, give_up_at).await {
            Ok(volumes) => volumes,
            Err(error) => {
                parked.end(&self.context.launcher).await;
                return Err((error, None));
            }
        };
        let Parked { mut running, monitor, files, paths: from } = parked;
        running.reservation = reservation.clone();
        running.volumes = volumes;
        let mut record = (*self.record()).clone();
        record.slots = running.volumes.slots();
        record.files = files;
        record.slot = running.network.as_ref().map(Attachment::slot);
        record.process = Some(monitor);

        let (to, mac, network) =
            (self.context.paths.sandbox(&record.id), Slot::mac_of(&record.id), record.network.clone());
        running.machine.moved(to.control_socket());
        let old = from.clone();
        let moved = durable::blocking(move || {
            from.rename(&to)?;
            write_record(&to, record)
        });
        let enforced = async {
            match &mut running.network {
                Some(attachment) => attachment.hand_over(mac, &network).await,
                None => Ok(()),
            }
        };
        let (moved, enforced) =
            tokio::join!(moved.instrument(trace::step("record")), enforced.instrument(trace::step("network")));
        let record = match moved.map_err(not_moved).and_then(|record| enforced.map_err(not_enforced).map(|()| record)) {
            Ok(record) => record,
            Err(error) => {
                // What was not moved is still there.
                let failed = (error, Some(running));
                parking::remove(old).await;
                return Err(failed);
            }
        };
        self.publish(record);
        let guest = self.guest(envs.clone(), running.network.as_ref(), &running.volumes);
        let start = Start { begin: Begin::Become(guest), way: Way::Parked, timeout_seconds: None, asked_at_us };
        self.see_through(running, start, give_up_at).await
    }
}

fn not_moved(source: io::Error) -> StartError {
    StartError::Host { what: "take over a parked machine's files", source }
}

fn not_enforced(error: AttachError) -> StartError {
    StartError::Host { what: "give the sandbox a network", source: io::Error::other(error_chain::chain(&error)) }
}
