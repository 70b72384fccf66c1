//! Work that may take longer than whoever asked for it waits. Whether its result was heard is certain on both sides, so work
//! that was late can take back what it has done.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::VolumeError;

/// Where the result of some work goes.
#[derive(Debug)]
pub(super) struct Answer<T>(oneshot::Sender<Result<T, VolumeError>>);

impl<T> Answer<T> {
    /// Whether nobody waits for it any more.
    pub(super) fn is_late(&self) -> bool {
        self.0.is_closed()
    }

    /// Gives the result; false if it was not heard, and will not be.
    pub(super) fn give(self, result: Result<T, VolumeError>) -> bool {
        self.0.send(result).is_ok()
    }
}

/// Does `work` on a thread of its own, and waits for its result for `limit`.
///
/// # Errors
/// That of the work, or that it takes longer: then it goes on, and is not heard.
pub(super) async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce(Answer<T>) + Send + 'static,
) -> Result<T, VolumeError> {
    let (answer, mut heard) = oneshot::channel();
    let working = spawn_blocking(move || work(Answer(answer)));
    if let Ok(result) = timeout(limit, &mut heard).await {
        return match (result, working) {
            (Ok(result), _) => result,
            // It has panicked.
            (Err(_), working) => {
                Err(working.await.map_or_else(|error| VolumeError::Task(error.into()), |()| VolumeError::Slow))
            }
        };
    }
    heard.close();
    // What was given before that counts.
    heard.try_recv().unwrap_or(Err(VolumeError::Slow))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_learns_whether_its_result_was_heard() {
        let heard = within(Duration::from_secs(60), |answer| assert!(!answer.is_late() && answer.give(Ok(7)))).await;
        assert_eq!(heard.unwrap(), 7);

        let (go_on, wait) = mpsc::channel::<()>();
        let (learnt, learn) = mpsc::channel();
        let late = within(Duration::ZERO, move |answer| {
            wait.recv().unwrap();
            learnt.send((answer.is_late(), answer.give(Ok(7)))).unwrap();
        });
        let late = late.await;
        go_on.send(()).unwrap();

        assert!(matches!(late, Err(VolumeError::Slow)), "{late:?}");
        assert_eq!(learn.recv().unwrap(), (true, false));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        let failed = within::<()>(Duration::from_secs(60), |_| panic!("as in a test")).await;
        assert!(matches!(failed, Err(VolumeError::Task(_))), "{failed:?}");
    }
}
