//! Requests that wake a paused sandbox: those that come together share one resume, however many they are, so that the
//! supervisor is asked once and its record is written once. Each of them is held by the ingress, which bounds their number.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use sandpiper_ingress::WakeError;

type Result = std::result::Result<(), WakeError>;
type Wake = BoxFuture<'static, Result>;

/// The wake of one sandbox, while there is one.
#[derive(Clone, Default)]
pub(crate) struct Wakes {
    current: Arc<Mutex<Option<WeakShared<Wake>>>>,
}

impl Wakes {
    /// Waits for the wake that is under way, or for the one that `begin` makes.
    pub(crate) fn join(&self, begin: impl FnOnce() -> Wake) -> Shared<Wake> {
        // The data under this lock is changed in one step.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is over says nothing about a sandbox that has been paused again since.
        let under_way = current.as_ref().and_then(WeakShared::upgrade).filter(|wake| wake.peek().is_none());
        under_way.unwrap_or_else(|| {
            let wake = begin().shared();
            *current = wake.downgrade();
            wake
        })
    }
}
