//! What `templateID` stands for: a template, or a snapshot by its id or name.
//!
//! | text | leads to |
//! |---|---|
//! | `name`, `team/name` | the newest version of that template, or that snapshot |
//! | `name:tag`, `team/name:tag` | for the tags `default` and `latest` the same, else that version of the template |
//! | `ckp…` | that snapshot |
//!
//! A team is the caller's own; what others have does not exist.

use sandpiper_http::error::ApiError;

use crate::auth::Caller;
use crate::state::App;
use crate::store::checkpoints::CheckpointRow;
use crate::v1::sandboxes::validate::Start;

/// Tags of what is newest.
const NEWEST: [&str; 2] = ["default", "latest"];

/// Where a new sandbox is to start. Whether a template is there is seen then.
///
/// # Errors
///
/// 400 on no text, 404 on another team's.
pub async fn find(app: &App, caller: &Caller, reference: &str) -> Result<Start, ApiError> {
    if reference.is_empty() {
        return Err(ApiError::invalid_field("templateID", "must not be empty"));
    }
    match snapshot(app, caller, reference).await? {
        Some(snapshot) => Ok(Start::Snapshot(snapshot.id)),
        None => Ok(Start::Template(bare(caller, reference)?.to_owned())),
    }
}

/// The caller's snapshot of this id or name.
///
/// # Errors
///
/// 404 on another team's.
pub async fn snapshot(app: &App, caller: &Caller, reference: &str) -> Result<Option<CheckpointRow>, ApiError> {
    let checkpoints = &app.store.checkpoints;
    let bare = bare(caller, reference)?;
    match checkpoints.get(&caller.team.id, bare).await? {
        Some(row) => Ok(Some(row)),
        None => Ok(checkpoints.by_name(&caller.team.id, bare).await?),
    }
}

/// The reference without the caller's own team, and without a tag that stands for the newest.
fn bare<'a>(caller: &Caller, reference: &'a str) -> Result<&'a str, ApiError> {
    let name = match reference.split_once('/') {
        None => reference,
        Some((team, name)) if team == caller.team.slug || team == caller.team.id.as_str() => name,
        Some(_) => {
            return Err(ApiError::not_found(format!("There is no template or snapshot {reference:?} of this team")));
        }
    };
    Ok(match name.rsplit_once(':') {
        Some((name, tag)) if NEWEST.contains(&tag) => name,
        _ => name,
    })
}
