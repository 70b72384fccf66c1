//! Sandboxes: one file per operation, [`body`] for what they share.

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::store::sandbox_row::SandboxRow;

pub mod body;
pub mod connect;
pub mod create;
pub mod delete;
pub mod list;
pub mod show;
pub mod update;
pub mod validate;

/// The caller's sandbox of this id, or 404.
pub(super) async fn owned(app: &App, caller: &Caller, id: &str) -> Result<SandboxRow, ApiError> {
    app.store.sandboxes.get(&caller.team.id, id).await?.ok_or_else(|| ApiError::no_sandbox(id))
}
