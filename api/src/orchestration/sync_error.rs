//! What keeps a round of synchronisation from its end.

use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;

use crate::agent_client::AgentError;

/// Why a round did not get to its end.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<SyncError> for ApiError {
    fn from(error: SyncError) -> Self {
        match error {
            SyncError::Agent(error) => error.into(),
            SyncError::Store(error) => error.into(),
        }
    }
}
