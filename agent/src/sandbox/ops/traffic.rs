//! How a supervisor reads what went through its machine's network: now and then, and before the slot goes.
//!
//! The counters are the kernel's and last as long as the slot, whatever becomes of the agent. So a reading is only there to be told
//! to whoever bills it, and for a host that loses its power: what counts is the one that is written down before the slot goes.

use jiff::Timestamp;
use sandpiper_network::Attachment;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::interval::Traffic;

use crate::sandbox::supervisor::Supervisor;

impl Supervisor {
    /// What went through the network of its machine until now, or as far as that is known; `None` where it is not counted.
    pub(crate) async fn traffic(&self, network: Option<&Attachment>) -> Option<Traffic> {
        let record = self.record();
        let known = self.context.intervals.traffic(&record.interval.as_ref()?.id)?;
        let Some(network) = network else { return Some(known) };
        match network.counters().await {
            Ok(counters) => {
                let now_ms = Timestamp::now().as_millisecond();
                Some(counters.map_or(known, |counters| known.read(now_ms, counters)))
            }
            Err(error) => {
                let error = error_chain::chain(&error);
                tracing::error!(
                    sandbox = record.id.as_str(),
                    error,
                    "cannot read a sandbox's traffic; what is known of it counts"
                );
                Some(known)
            }
        }
    }

    /// Has the journal say what went through it until now, unless much waits there to be fetched: then only what comes to it in the
    /// end.
    pub(crate) async fn measure_traffic(&self, network: Option<&Attachment>) {
        if !self.context.intervals.is_crowded() {
            self.journal_traffic(self.traffic(network).await);
        }
    }

    /// Has the journal say what went through it, within seconds.
    pub(crate) fn journal_traffic(&self, traffic: Option<Traffic>) {
        if let (Some(interval), Some(traffic)) = (&self.record().interval, traffic) {
            self.context.intervals.measure(&interval.id, traffic);
        }
    }
}
