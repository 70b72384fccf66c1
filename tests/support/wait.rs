//! Waiting for a condition, with a bound: never for a time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Generous: guests in software emulation run up to fifty times slower.
const BOUND: Duration = Duration::from_secs(120);
/// Between two questions.
const EVERY: Duration = Duration::from_millis(50);

/// Asks again and again until the answer is `Some`, and panics with `what` when it never is.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    wait_until(what, || {
        let answer = ask();
        async move { answer.await.ok_or_else(|| "not yet".to_owned()) }
    })
    .await
}

/// Asks again and again until the answer is yes, and panics with `what` when it never is.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    wait_for(what, || {
        let answer = ask();
        async move { answer.await.then_some(()) }
    })
    .await;
}

/// Asks again and again until the answer is `Ok`, and panics with `what` and the last reason why not when it never is.
pub async fn wait_until<T, F: Future<Output = Result<T, String>>>(what: &str, ask: impl FnMut() -> F) -> T {
    wait_until_within(BOUND, what, ask).await
}

/// As [`wait_until`], for what takes longer than most.
pub(crate) async fn wait_until_within<T, F: Future<Output = Result<T, String>>>(
    bound: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let give_up_at = Instant::now() + bound;
    let mut last = "no answer".to_owned();
    while let Ok(answer) = timeout(give_up_at.saturating_duration_since(Instant::now()), ask()).await {
        match answer {
            Ok(answer) => return answer,
            Err(reason) => last = reason,
        }
        // What answers at once is never late for `timeout`.
        if Instant::now() >= give_up_at {
            break;
        }
        sleep(EVERY).await;
    }
    panic!("{what}: not within {} s; at last: {last}", bound.as_secs())
}

/// The outcome of something that must come to an end by itself, one way or another; panics with `what` if it does not.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match timeout(BOUND, work).await {
        Ok(outcome) => outcome,
        Err(_) => panic!("{what}: no end within {} s", BOUND.as_secs()),
    }
}
