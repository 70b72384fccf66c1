//! Holds what clients ask for while the guest is still becoming the one that they mean, of which its host knows already.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

/// Open, until somebody closes it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<RwLock<()>>);

/// Keeps a gate closed until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed {
    _guard: OwnedRwLockWriteGuard<()>,
}

impl Gate {
    /// Has those wait who come from now on.
    pub(crate) async fn close(&self) -> Closed {
        Closed { _guard: Arc::clone(&self.0).write_owned().await }
    }

    /// Waits while the gate is closed.
    pub(crate) async fn pass(&self) {
        drop(self.0.read().await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn who_comes_while_it_is_closed_passes_once_it_is_open() {
        let gate = Gate::default();
        gate.pass().await;
        let closed = gate.close().await;
        let passing = tokio::spawn({
            let gate = gate.clone();
            async move { gate.pass().await }
        });
        assert!(timeout(Duration::from_millis(20), gate.pass()).await.is_err());

        drop(closed);

        timeout(Duration::from_secs(30), passing).await.unwrap().unwrap();
        gate.pass().await;
    }
}
