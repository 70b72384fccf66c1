//! Entries of a sandbox's log as they come: the agent is asked for what follows the last one that was sent.

use std::time::{Duration, Instant};

use axum::response::sse::Event;
use futures_util::{Stream, StreamExt, stream};
use sandpiper_protocol::agent::{LogPage, LogQuery, LogSource};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::TeamId;
use serde_json::json;

use super::LogEntryBody;
use crate::auth::Caller;
use crate::in_flight::PerTeamGuard;
use crate::state::App;
use crate::v1::sse;

/// Between two looks for what was noted.
const POLL: Duration = Duration::from_millis(300);
/// Entries of one look.
const AT_ONCE: usize = 200;
/// Between two looks whether the caller still may read them.
const CHECK: Duration = Duration::from_secs(2);

/// What of which log is followed.
pub(super) struct Wanted {
    pub(super) sandbox: String,
    /// Of this source alone.
    pub(super) source: Option<LogSource>,
    /// Only what follows this sequence.
    pub(super) after: u64,
}

/// The entries that are wanted, until the sandbox has ended, or the caller may not read them any more.
pub(super) fn entries(
    app: App,
    caller: &Caller,
    Wanted { sandbox, source, after }: Wanted,
    counted: PerTeamGuard,
) -> impl Stream<Item = Event> + Send + 'static {
    let follower = Follower {
        app,
        key_id: caller.key_id.clone(),
        team: caller.team.id.clone(),
        sandbox,
        source,
        sent_to: after,
        read_to: after,
        phase: Phase::Reading,
        checked_at: Instant::now(),
        _counted: counted,
    };
    let batches = stream::unfold(follower, async |mut follower| {
        let app = follower.app.clone();
        // Without `end`: the reader goes on with another process, or this one when it is back.
        let batch = app.ending.run_until_cancelled(follower.next()).await??;
        Some((stream::iter(batch), follower))
    });
    batches.flatten()
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// More may be there already.
    Reading,
    Waiting,
    Ended,
}

struct Follower {
    app: App,
    key_id: String,
    team: TeamId,
    sandbox: String,
    source: Option<LogSource>,
    /// The last that was sent.
    sent_to: u64,
    /// All that is wanted up to this sequence is sent.
    read_to: u64,
    phase: Phase,
    checked_at: Instant,
    _counted: PerTeamGuard,
}

impl Follower {
    /// What is to be sent next; `None` at the end. Signs of life are [`sse::response`]'s.
    async fn next(&mut self) -> Option<Vec<Event>> {
        loop {
            match self.phase {
                Phase::Ended => return None,
                Phase::Waiting => tokio::time::sleep(POLL).await,
                Phase::Reading => {}
            }
            if !self.still_may().await {
                return None;
            }
            self.phase = Phase::Waiting;
            let (after, source, limit) = (Some(self.read_to), self.source, Some(AT_ONCE));
            let query = LogQuery { after, source, limit, ..LogQuery::default() };
            match self.app.agent.logs(&self.sandbox, &query).await {
                Ok(page) => {
                    let events = self.events(page);
                    if !events.is_empty() {
                        return Some(events);
                    }
                }
                // The host has forgotten it since.
                Err(error) if error.is_not_found() => {
                    self.phase = Phase::Ended;
                    return Some(vec![self.end()]);
                }
                // The agent may be away for a while.
                Err(error) => {
                    tracing::warn!(sandbox = self.sandbox, error = chain(&error), "log not followed for now");
                }
            }
        }
    }

    fn events(&mut self, page: LogPage) -> Vec<Event> {
        let mut events = Vec::new();
        if page.is_truncated && self.read_to > 0 && !page.entries.is_empty() {
            events.push(sse::event("truncated", &json!({"after": self.read_to})));
        }
        for entry in page.entries {
            (self.sent_to, self.read_to) = (entry.sequence, entry.sequence);
            let event = sse::event("log", &LogEntryBody::from(entry));
            events.push(event.id(self.sent_to.to_string()));
        }
        if page.has_more {
            self.phase = Phase::Reading;
            return events;
        }
        // Of other sources there may be more, which need not be looked at again.
        self.read_to = self.read_to.max(page.last);
        if page.is_ended {
            self.phase = Phase::Ended;
            events.push(self.end());
        }
        events
    }

    fn end(&self) -> Event {
        sse::event("end", &json!({"last": self.sent_to}))
    }

    /// Whether the caller still may read what the team does, as far as is known.
    async fn still_may(&mut self) -> bool {
        if self.checked_at.elapsed() < CHECK {
            return true;
        }
        match Caller::still_reads(&self.app, &self.key_id, self.team.as_str()).await {
            Ok(false) => false,
            Ok(true) => {
                self.checked_at = Instant::now();
                true
            }
            Err(error) => {
                tracing::warn!(team = %self.team, error = error.message(), "cannot check who follows a log");
                true
            }
        }
    }
}
