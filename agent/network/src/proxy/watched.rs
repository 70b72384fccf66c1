//! A granted connection, for as long as it is granted.

use std::sync::{Mutex, PoisonError};

use sandpiper_policy::{Decision, Rule, Verdict};
use tokio::time::{Instant, interval_at};

use super::activity::Activity;
use super::dial::Grant;
use crate::denials::Seen;
use crate::shared::Shared;

/// What a connection is granted now. Over HTTP it may be for one server after the other.
#[derive(Debug, Default)]
pub(super) struct Granted(Mutex<Option<Grant>>);

impl Granted {
    pub(super) fn set(&self, grant: Grant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
    }

    fn get(&self) -> Option<Grant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The connection ended by itself.
    Done,
    Idle,
    /// The policy changed.
    Forbidden,
}

/// Goes on with `work` until it is done, idle, or no longer granted. `work` is dropped then.
pub(super) async fn watch(
    shared: &Shared,
    seen: Seen,
    granted: &Granted,
    activity: &Activity,
    work: impl Future<Output = ()>,
) -> End {
    let mut changes = shared.changes();
    // The policy may have changed since it granted.
    changes.mark_changed();
    let idle = shared.limits.idle;
    let mut checks = interval_at(Instant::now() + idle, idle);
    let mut moved = activity.count();
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            Ok(()) = changes.changed() => {
                if let Some(grant) = granted.get() && ask_again(shared, seen, &grant).await.is_err() {
                    return End::Forbidden;
                }
            }
            () = &mut work => return End::Done,
            _ = checks.tick() => {
                let now = activity.count();
                if now == moved {
                    return End::Idle;
                }
                moved = now;
            }
        }
    }
}

/// Asks the policy for what was granted before. If it is not granted now, that is a denial as any other.
pub(super) async fn ask_again(shared: &Shared, seen: Seen, grant: &Grant) -> Result<(), Rule> {
    let Decision { verdict, rule } = grant.decide(shared).await;
    match verdict {
        Verdict::Allow => Ok(()),
        Verdict::Deny => {
            shared.denials.record(seen, &grant.wanted(), Some(grant.port()), &rule);
            Err(rule)
        }
    }
}
