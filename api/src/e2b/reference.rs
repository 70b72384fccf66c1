//! What `templateID` stands for: a template, or a snapshot by its id or name.
//!
//! | text | leads to |
//! |---|---|
//! | `name`, `team/name` | that snapshot; or the version of that template with the tag `default`, else its newest |
//! | `name:default`, `name:latest` | the version with this tag, else the same |
//! | `name:tag`, `team/name:tag` | that version of the template |
//! | `tpl…`, `ckp…` | that template, that snapshot |
//!
//! Of other teams' templates those that are public are found, as `team/name`; their snapshots do not exist.

use sandpiper_http::error::ApiError;

use crate::auth::Caller;
use crate::state::App;
use crate::store::checkpoints::CheckpointRow;
use crate::v1::sandboxes::validate::Start;
use crate::v1::templates::reference::{Found, look_up};

/// Tags that stand for the newest where no version has them.
const NEWEST: [&str; 2] = [DEFAULT_TAG, "latest"];
/// The tag of a version that is built without any.
pub const DEFAULT_TAG: &str = "default";

/// Where a new sandbox is to start. Whether a template is there is seen then.
///
/// # Errors
///
/// 400 on no text.
pub async fn find(app: &App, caller: &Caller, reference: &str) -> Result<Start, ApiError> {
    if reference.is_empty() {
        return Err(ApiError::invalid_field("templateID", "must not be empty"));
    }
    if let Some(snapshot) = snapshot(app, caller, reference).await? {
        return Ok(Start::Snapshot(snapshot.id));
    }
    let bare = own(caller, reference).unwrap_or(reference);
    let (name, tag) = (name(bare), tag(bare));
    Ok(Start::Template(match tag {
        Some(tag) if !NEWEST.contains(&tag) => bare.to_owned(),
        tag => {
            let tagged = format!("{name}:{}", tag.unwrap_or(DEFAULT_TAG));
            match look_up(app, &caller.team.id, &tagged).await? {
                Found::Version(..) => tagged,
                _ => name.to_owned(),
            }
        }
    }))
}

/// The caller's snapshot of this id or name.
///
/// # Errors
///
/// Those of the database.
pub async fn snapshot(app: &App, caller: &Caller, reference: &str) -> Result<Option<CheckpointRow>, ApiError> {
    let checkpoints = &app.store.checkpoints;
    let Some(bare) = own(caller, reference) else { return Ok(None) };
    let bare = match tag(bare) {
        Some(tag) if NEWEST.contains(&tag) => name(bare),
        _ => bare,
    };
    match checkpoints.get(&caller.team.id, bare).await? {
        Some(row) => Ok(Some(row)),
        None => Ok(checkpoints.by_name(&caller.team.id, bare).await?),
    }
}

/// The reference without the caller's own team; `None` with another's.
pub fn own<'a>(caller: &Caller, reference: &'a str) -> Option<&'a str> {
    match reference.split_once('/') {
        None => Some(reference),
        Some((team, bare)) if team == caller.team.slug || team == caller.team.id.as_str() => Some(bare),
        Some(_) => None,
    }
}

/// The reference without its tag.
pub fn name(reference: &str) -> &str {
    reference.rsplit_once(':').map_or(reference, |(name, _)| name)
}

/// The tag of a reference.
pub fn tag(reference: &str) -> Option<&str> {
    reference.rsplit_once(':').map(|(_, tag)| tag)
}
