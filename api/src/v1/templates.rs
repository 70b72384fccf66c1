//! The templates that sandboxes start from.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging};
use crate::auth::ReadAccess;
use crate::state::App;
use crate::store::templates::TemplateVersion;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct TemplateList {
    /// By slug.
    pub templates: Vec<TemplateBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// One template, by its newest version.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Template)]
pub struct TemplateBody {
    /// What a create request names as `template`.
    pub slug: String,
    pub latest_version: VersionBody,
    pub runtime_baseline: BaselineBody,
}

/// One immutable version; a create request pins it as `<slug>:<id>` or `<slug>:<number>`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TemplateVersion)]
pub struct VersionBody {
    pub id: String,
    /// 1 for the template's first version.
    pub number: u32,
    pub created_at: Timestamp,
}

/// CPU and memory of a sandbox whose create request names none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuntimeBaseline)]
pub struct BaselineBody {
    pub cpu: u32,
    /// MiB.
    pub memory_mb: u32,
}

impl From<TemplateVersion> for TemplateBody {
    fn from(version: TemplateVersion) -> Self {
        Self {
            slug: version.slug,
            latest_version: VersionBody { id: version.id, number: version.number, created_at: version.created_at },
            runtime_baseline: BaselineBody { cpu: version.baseline.cpu, memory_mb: version.baseline.memory_mb },
        }
    }
}

/// List templates
///
/// Every template with a version that can be started, by slug, page by page.
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
    let templates = app.store.templates.all_latest().await?.into_iter();
    let templates = templates.map(|version| (version.slug.clone(), TemplateBody::from(version)));
    let (templates, next_token) = paging.cut(&List::of_keys(&json!(["templates"])), templates)?;
    Ok(Json(TemplateList { templates, next_token }))
}
