//! `GET /v1/audit`

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use sandpiper_db::audit::{Entry, Filter};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging};
use crate::auth::ManageAccess;
use crate::state::App;

/// A request that changed something, or was refused.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub struct EntryBody {
    pub id: String,
    pub at: Timestamp,
    /// Id of the user who was signed in; null: it was an API key.
    pub user: Option<String>,
    /// Id of the API key, or of the login session.
    pub key: String,
    /// Method and route: `DELETE /v1/sandboxes/{id}`.
    pub action: String,
    /// Id of what was acted on, where there is one.
    pub resource: Option<String>,
    /// HTTP status of the response.
    pub status: u16,
    pub request_id: String,
}

impl EntryBody {
    /// What somebody is told of the entry with this id.
    pub fn new(id: String, entry: Entry) -> Self {
        let Entry { at, key_id, user_id, request_id, action, resource, status, .. } = entry;
        Self { id, at, user: user_id, key: key_id, action, resource, status, request_id }
    }
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditList)]
pub struct EntryList {
    /// Newest first.
    pub entries: Vec<EntryBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List what was done
///
/// Requests of the team that changed something or were refused, newest first. Needs an admin.
#[utoipa::path(
    get,
    path = "/v1/audit",
    operation_id = "list_audit",
    tag = "accounts",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of a team: the personal one by default"),
        ("actor" = Option<String>, Query, description = "Only by this one: id of a user, an API key or a login session"),
        ("action" = Option<String>, Query, description = "Only this: method and route, `DELETE /v1/sandboxes/{id}`"),
        ("resource" = Option<String>, Query, description = "Only on this: an id"),
        ("from" = Option<Timestamp>, Query, description = "Not before this time"),
        ("to" = Option<Timestamp>, Query, description = "Before this time"),
        ("limit" = Option<u32>, Query, description = "Entries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same filters"),
    ),
    responses((status = 200, description = "A page", body = EntryList))
)]
pub async fn list(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Json<EntryList>, ApiError> {
    let (mut paging, mut filter) = (Paging::default(), Filter::default());
    for (name, value) in pairs {
        if !take(&mut filter, &name, &value)? && !paging.take(&name, &value)? {
            return Err(unknown(&name));
        }
    }
    caller.check_team(paging.team.as_deref())?;
    let Filter { actor, action, resource, from, to } = &filter;
    let list = List::of_ids("aud", &json!([caller.team.id, actor, action, resource, from, to]));
    let after = paging.after(&list)?;
    let limit = paging.limit;
    let mut entries = app.store.audit.page(Some(&caller.team.id), &filter, after.as_deref(), limit + 1).await?;
    let next_token = list.cut(&mut entries, limit, |(id, _)| id.clone());
    let entries = entries.into_iter().map(|(id, entry)| EntryBody::new(id, entry)).collect();
    Ok(Json(EntryList { entries, next_token }))
}

/// Takes a parameter over into the filter; false when it is none of it.
///
/// # Errors
///
/// 400 on what is no time.
pub fn take(filter: &mut Filter, name: &str, value: &str) -> Result<bool, ApiError> {
    match name {
        "actor" => filter.actor = Some(value.to_owned()),
        "action" => filter.action = Some(value.to_owned()),
        "resource" => filter.resource = Some(value.to_owned()),
        "from" => filter.from = Some(time("from", value)?),
        "to" => filter.to = Some(time("to", value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn time(name: &'static str, text: &str) -> Result<Timestamp, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_field(name, "must be a time of RFC 3339: 2026-01-31T12:00:00Z"))
}
