//! Events as they happen.
//!
//! Which of the processes on the database has written an event is all the same: each stream asks the database for what follows
//! the last number that it has sent. It begins with a comment that has that number as its id, and so does every sign of life: a
//! reader whose connection breaks off always knows where to go on, whatever its filter selects.

use std::time::{Duration, Instant};

use axum::response::sse::Event;
use futures_util::{Stream, StreamExt, stream};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::TeamId;

use super::body::EventBody;
use crate::auth::Caller;
use crate::in_flight::PerTeamGuard;
use crate::state::App;
use crate::store::events::EventFilter;
use crate::v1::sse;

/// Between two looks for what has happened.
const POLL: Duration = Duration::from_millis(250);
/// Events of one look.
const AT_ONCE: u32 = 100;
/// Between two looks whether the caller still may read them.
const CHECK: Duration = Duration::from_secs(2);

/// Events that `filter` selects of those after number `from`, until the caller may not read them any more.
pub(super) fn events(
    app: App,
    caller: &Caller,
    filter: EventFilter,
    from: u64,
    counted: PerTeamGuard,
) -> impl Stream<Item = Event> + Send + 'static {
    let follower = Follower {
        app,
        key_id: caller.key_id.clone(),
        team: caller.team.id.clone(),
        filter,
        sent_to: from,
        is_more: true,
        said_at: None,
        checked_at: Instant::now(),
        _counted: counted,
    };
    let batches = stream::unfold(follower, async |mut follower| {
        let app = follower.app.clone();
        let batch = app.ending.run_until_cancelled(follower.next()).await??;
        Some((stream::iter(batch), follower))
    });
    batches.flatten()
}

struct Follower {
    app: App,
    key_id: String,
    team: TeamId,
    filter: EventFilter,
    /// All up to this number that the filter selects is sent.
    sent_to: u64,
    /// Whether more may be there already.
    is_more: bool,
    /// When something was sent last.
    said_at: Option<Instant>,
    checked_at: Instant,
    _counted: PerTeamGuard,
}

impl Follower {
    /// What is to be sent next; `None` at the end.
    async fn next(&mut self) -> Option<Vec<Event>> {
        // Before the first event: where the reader is.
        if self.said_at.is_none() {
            return Some(vec![self.sign_of_life()]);
        }
        loop {
            if !self.is_more {
                tokio::time::sleep(POLL).await;
            }
            if !self.still_may().await {
                return None;
            }
            let page = match self.app.store.events.page(&self.team, self.sent_to, &self.filter, AT_ONCE).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(team = %self.team, error = chain(&error), "events not followed for now");
                    self.is_more = false;
                    continue;
                }
            };
            // It was read so slowly that what follows is gone: who comes back is told.
            if page.removed > self.sent_to {
                return None;
            }
            self.sent_to = page.read_to.max(self.sent_to);
            self.is_more = page.read_to < page.last;
            if !page.events.is_empty() {
                self.said_at = Some(Instant::now());
                return Some(page.events.into_iter().map(|row| event(&EventBody::from(row))).collect());
            }
            if self.said_at.is_none_or(|at| at.elapsed() >= sse::KEEP_ALIVE) {
                return Some(vec![self.sign_of_life()]);
            }
        }
    }

    /// A comment, which moves the reader's `Last-Event-ID` on.
    fn sign_of_life(&mut self) -> Event {
        self.said_at = Some(Instant::now());
        Event::default().id(self.sent_to.to_string()).comment("")
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
            // Nor are there events to be had from the database.
            Err(error) => {
                tracing::warn!(team = %self.team, error = error.message(), "cannot check who follows events");
                true
            }
        }
    }
}

fn event(body: &EventBody) -> Event {
    sse::event(body.event_type, body).id(body.sequence.to_string())
}
