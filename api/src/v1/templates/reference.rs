//! What the name of a template stands for.
//!
//! ```text
//!   [TEAM/]SLUG[:VERSION]        VERSION: its number, its id, or a tag
//!   tpl…[:VERSION]
//! ```
//!
//! A slug alone is the team's own template, or else the host's. Of another team's templates those that are public are found,
//! under that team's slug or id.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::ids::TeamId;

use crate::auth::Caller;
use crate::errors;
use crate::orchestration;
use crate::state::App;
use crate::store::templates::TemplateRow;
use crate::store::templates::versions::{State, VersionRow};

/// A name, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference<'a> {
    /// Slug or id of the team.
    pub owner: Option<&'a str>,
    /// Slug or id of the template.
    pub name: &'a str,
    pub version: Option<&'a str>,
}

impl<'a> Reference<'a> {
    /// Takes a name apart.
    pub fn parse(text: &'a str) -> Self {
        let (rest, version) = match text.split_once(':') {
            Some((rest, version)) => (rest, Some(version)),
            None => (text, None),
        };
        match rest.split_once('/') {
            Some((owner, name)) => Self { owner: Some(owner), name, version },
            None => Self { owner: None, name: rest, version },
        }
    }
}

/// What a name leads to.
#[derive(Debug)]
pub enum Found {
    Nothing,
    /// The template has no such version, or none that can be started.
    NoVersion(TemplateRow),
    /// The version cannot be started.
    NotReady(TemplateRow, VersionRow),
    Version(TemplateRow, VersionRow),
}

/// Looks a name up.
///
/// # Errors
///
/// Those of the database.
pub async fn look_up(app: &App, team: &TeamId, text: &str) -> Result<Found, ApiError> {
    let Reference { owner, name, version } = Reference::parse(text);
    let Some(mut template) = app.store.templates.find(team, owner, name).await? else { return Ok(Found::Nothing) };
    let row = match version {
        None => template.latest.take(),
        Some(reference) => app.store.templates.version(&template.id, reference).await?,
    };
    Ok(match row.filter(|row| template.shows(row, team)) {
        None => Found::NoVersion(template),
        Some(row) if row.is_runnable => Found::Version(template, row),
        Some(row) => Found::NotReady(template, row),
    })
}

/// What a name leads to after the agent was asked what it has, which it may have got a moment ago.
///
/// # Errors
///
/// As [`startable`], and those of the database and the agent.
pub async fn fresh(app: &App, team: &TeamId, text: &str) -> Result<(TemplateRow, VersionRow), ApiError> {
    orchestration::sync::fresh_catalog(app).await?;
    startable(look_up(app, team, text).await?, text, team)
}

/// What can be started of what a name leads to.
///
/// # Errors
///
/// 404, and 409 on a version that is not ready; each says what to do.
fn startable(found: Found, text: &str, team: &TeamId) -> Result<(TemplateRow, VersionRow), ApiError> {
    let pinned = Reference::parse(text).version;
    Err(match found {
        Found::Version(template, version) => return Ok((template, version)),
        Found::Nothing => ApiError::not_found(format!(
            "There is no template or snapshot {text:?}; GET /v1/templates lists templates, GET /v1/checkpoints snapshots"
        )),
        Found::NoVersion(template) => {
            let name = template.name_for(team);
            match pinned {
                Some(version) => errors::no_version(&name, version),
                None => ApiError::invalid_state(format!(
                    "The template {name} has no version that is ready; GET /v1/templates/{name}/versions says how its \
                     builds are, POST builds one"
                )),
            }
        }
        Found::NotReady(template, row) => not_ready(&template.name_for(team), &row),
    })
}

fn not_ready(name: &str, row: &VersionRow) -> ApiError {
    let version = format!("{name}:{}", row.number);
    match row.state {
        State::Queued | State::Building | State::Warming => {
            ApiError::invalid_state(format!("{version} is {}; start from it when it is ready", row.state))
        }
        State::Failed => ApiError::invalid_state(format!(
            "{version} failed to build: {}",
            row.error.as_ref().map_or("its log says why", |error| error.message.as_str())
        )),
        State::Cancelled => ApiError::invalid_state(format!("{version} was cancelled; build another version")),
        State::Ready | State::Deleted => ApiError::not_found(format!(
            "{version} is no longer on this host; GET /v1/templates/{name}/versions lists what is"
        )),
    }
}

/// The template in a path, if the caller sees it.
///
/// # Errors
///
/// 404.
pub async fn visible(app: &App, caller: &Caller, text: &str) -> Result<TemplateRow, ApiError> {
    let Reference { owner, name, version } = Reference::parse(text);
    let found = match version {
        None => app.store.templates.find(&caller.team.id, owner, name).await?,
        Some(_) => None,
    };
    found.ok_or_else(|| errors::no_template(text))
}

/// The template in a path, if it is the caller's own.
///
/// # Errors
///
/// 404, and 403 on one that is only used.
pub async fn owned(app: &App, caller: &Caller, text: &str) -> Result<TemplateRow, ApiError> {
    let template = visible(app, caller, text).await?;
    if template.is_of(&caller.team.id) { Ok(template) } else { Err(errors::not_owner(&template)) }
}

/// The version in a path.
///
/// # Errors
///
/// 404, also on one of another team that cannot be started.
pub async fn version(
    app: &App,
    caller: &Caller,
    template: &TemplateRow,
    reference: &str,
) -> Result<VersionRow, ApiError> {
    let row = app.store.templates.version(&template.id, reference).await?;
    let row = row.filter(|row| template.shows(row, &caller.team.id));
    row.ok_or_else(|| errors::no_version(&template.name_for(&caller.team.id), reference))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_team_a_slug_and_a_version() {
        let of = |owner, name, version| Reference { owner, name, version };
        assert_eq!(Reference::parse("base"), of(None, "base", None));
        assert_eq!(Reference::parse("base:3"), of(None, "base", Some("3")));
        assert_eq!(Reference::parse("acme/node:v1"), of(Some("acme"), "node", Some("v1")));
        assert_eq!(Reference::parse("base:"), of(None, "base", Some("")));
    }
}
