//! Volumes: named file systems of a team, which sandboxes mount one at a time; and what is in those that no sandbox has.
//!
//! | route | file |
//! |---|---|
//! | `POST /v1/volumes` | [`create`] |
//! | `GET /v1/volumes` | [`list`] |
//! | `GET /v1/volumes/{id}` | [`show`] |
//! | `DELETE /v1/volumes/{id}` | [`delete`] |
//! | `GET/PUT/DELETE /v1/volumes/{id}/files?path=` | [`files`] |
//! | `GET/POST /v1/volumes/{id}/directories?path=` | [`directories`] |
//! | `GET/PATCH/DELETE /v1/volumes/{id}/path?path=` | [`path`] |
//!
//! What is in a volume is asked of the agent, where a machine of its own reads and writes: nothing on the host looks into a
//! volume. [`body`] has what they share.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::ids::VolumeId;

use crate::auth::Caller;
use crate::errors;
use crate::orchestration::volume::find;
use crate::state::App;
use crate::store::volumes::State;

pub mod body;
pub mod create;
pub mod delete;
pub mod directories;
pub mod files;
pub mod list;
pub mod path;
pub mod show;

/// The caller's volume of this id, if no sandbox has it.
///
/// # Errors
///
/// 404, also on another team's; 409 while a sandbox has it, or it is not there to be used.
pub async fn detached(app: &App, caller: &Caller, id: &str) -> Result<VolumeId, ApiError> {
    let row = find(app, caller, id).await?;
    errors::check_detached(&row)?;
    // A plan may keep for some days what nobody uses.
    app.last_use.note(&row.id, app.clock.now());
    match row.state {
        State::Ready => Ok(row.id),
        State::Failed => Err(ApiError::invalid_state(format!("{id} was lost by its host; nothing is left of it"))),
        State::Creating | State::Deleting | State::Deleted => {
            Err(ApiError::invalid_state(format!("{id} is {}; it can be used while it is ready", row.state)))
        }
    }
}
