//! `GET /v1/templates`

use axum::Json;
use axum::extract::State;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::body::TemplateBody;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::v1::page::{List, Paging};

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct TemplateList {
    /// By slug.
    pub templates: Vec<TemplateBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List templates
///
/// By slug, page by page: the team's own, the host's, and those that other teams have made public, as far as they can be
/// started.
#[utoipa::path(
    get,
    path = "/v1/templates",
    operation_id = "list_templates",
    tag = "templates",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("limit" = Option<u32>, Query, description = "Templates per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = TemplateList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<TemplateList>, ApiError> {
    let paging = Paging::of_team(query, &caller)?;
    let list = List::of_ids("tpl", &json!(["templates", caller.team.id]));
    let after = paging.after(&list)?;

    let page = app.store.templates.list(&caller.team.id, after.as_deref(), paging.limit).await?;

    Ok(Json(TemplateList {
        templates: page.templates.into_iter().map(|row| TemplateBody::new(&caller.team.id, row)).collect(),
        next_token: page.after.map(|after| list.token(after)),
    }))
}
