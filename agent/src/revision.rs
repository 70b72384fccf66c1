//! Counts the changes of sandboxes, for those who would otherwise ask for their list again and again.

use jiff::Timestamp;
use tokio::sync::watch;

/// How often anything that a list of sandboxes shows has changed. It goes on from the time, so that no number of an earlier
/// agent comes again.
#[derive(Debug, Clone)]
pub(crate) struct Revision(watch::Sender<i64>);

impl Default for Revision {
    fn default() -> Self {
        Self(watch::Sender::new(Timestamp::now().as_microsecond()))
    }
}

impl Revision {
    /// There is something new to be seen.
    pub(crate) fn advance(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// What it is now.
    pub(crate) fn get(&self) -> i64 {
        *self.0.borrow()
    }

    /// Returns when it is another than `known`.
    pub(crate) async fn wait_while(&self, known: i64) {
        // Its sender is this one: it is not closed while it is waited for.
        let _ = self.0.subscribe().wait_for(|count| *count != known).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn who_knows_the_newest_waits_for_the_next() {
        let revision = Revision::default();
        let known = revision.get();
        assert!(timeout(Duration::from_millis(20), revision.wait_while(known)).await.is_err());

        let waiting = tokio::spawn({
            let revision = revision.clone();
            async move { revision.wait_while(known).await }
        });
        revision.advance();
        waiting.await.unwrap();
        revision.wait_while(known).await;
        assert_ne!(revision.get(), known);
    }
}
