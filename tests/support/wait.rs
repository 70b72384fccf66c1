//! Waiting for a condition, with a bound: never for a time.

use std::time::{Duration, Instant};

/// Generous: guests in software emulation run up to fifty times slower.
const BOUND: Duration = Duration::from_secs(120);

/// Asks again and again until the answer is `Some`, and panics with `what` when it never is.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + BOUND;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {} s", BOUND.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Asks again and again until the answer is yes, and panics with `what` when it never is.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    wait_for(what, || {
        let answer = ask();
        async move { answer.await.then_some(()) }
    })
    .await;
}
