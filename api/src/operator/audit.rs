//! `GET /operator/v1/audit`

use axum::Json;
use axum::extract::State;
use sandpiper_accounts::Operator;
use sandpiper_db::audit::{Filter, OPERATOR};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::teams::find;
use crate::state::App;
use crate::v1::audit::{EntryBody, take};
use crate::v1::page::{List, Paging};

/// A request, with whose it was.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OperatorAuditEntry)]
pub struct OperatorEntryBody {
    /// Id of the team or the merchant; `operator` for what operators did.
    pub team: String,
    #[serde(flatten)]
    pub entry: EntryBody,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OperatorAuditList)]
pub struct OperatorEntryList {
    /// Newest first.
    pub entries: Vec<OperatorEntryBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List what everybody did
///
/// Requests of all teams, merchants and operators that changed something or were refused, newest first.
#[utoipa::path(
    get,
    path = "/operator/v1/audit",
    operation_id = "operator_list_audit",
    tag = "operators",
    params(
        ("team" = Option<String>, Query, description = "Only of this team: slug or id; `operator`: what operators did"),
        ("actor" = Option<String>, Query, description = "Only by this one: id of a user, a key or a login session"),
        ("action" = Option<String>, Query, description = "Only this: method and route, `DELETE /v1/sandboxes/{id}`"),
        ("resource" = Option<String>, Query, description = "Only on this: an id"),
        ("from" = Option<Timestamp>, Query, description = "Not before this time"),
        ("to" = Option<Timestamp>, Query, description = "Before this time"),
        ("limit" = Option<u32>, Query, description = "Entries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same filters"),
    ),
    responses((status = 200, description = "A page", body = OperatorEntryList))
)]
pub async fn list(
    _: Operator,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Json<OperatorEntryList>, ApiError> {
    let (mut paging, mut filter) = (Paging::default(), Filter::default());
    for (name, value) in pairs {
        if !take(&mut filter, &name, &value)? && !paging.take(&name, &value)? {
            return Err(unknown(&name));
        }
    }
    let team = match paging.team.as_deref() {
        None | Some(OPERATOR) => paging.team.clone(),
        Some(team) => Some(find(&app, team).await?.id.to_string()),
    };
    let Filter { actor, action, resource, from, to } = &filter;
    let list = List::of_ids("aud", &json!(["operator", team, actor, action, resource, from, to]));
    let after = paging.after(&list)?;
    let mut entries = app.store.audit.page(team.as_deref(), &filter, after.as_deref(), paging.limit + 1).await?;
    let next_token = list.cut(&mut entries, paging.limit, |(id, _)| id.clone());
    let entries = entries
        .into_iter()
        .map(|(id, entry)| OperatorEntryBody { team: entry.team_id.clone(), entry: EntryBody::new(id, entry) })
        .collect();
    Ok(Json(OperatorEntryList { entries, next_token }))
}
