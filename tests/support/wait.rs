//! Waiting for a condition, with a bound: never for a time.

use std::time::Duration;

/// Generous: guests in software emulation run up to fifty times slower.
const BOUND: Duration = Duration::from_secs(120);

/// Asks again and again until the answer is `Some`, and panics with `what` when it never is.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let answer = tokio::time::timeout(BOUND, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    match answer.await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: not within {} s", BOUND.as_secs()),
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
