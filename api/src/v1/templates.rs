//! The templates that sandboxes start from.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::ReadAccess;
use crate::error::ApiError;
use crate::store::templates::TemplateVersion;

/// All templates.
#[derive(Debug, Serialize, ToSchema)]
pub struct TemplateList {
    pub templates: Vec<TemplateBody>,
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
/// Every template with a version that can be started, by slug.
#[utoipa::path(
    get,
    path = "/v1/templates",
    operation_id = "list_templates",
    tag = "templates",
    responses((status = 200, description = "The templates", body = TemplateList))
)]
pub async fn list(_access: ReadAccess, State(app): State<App>) -> Result<Json<TemplateList>, ApiError> {
    let templates = app.store.templates.all_latest().await?.into_iter().map(TemplateBody::from).collect();
    Ok(Json(TemplateList { templates }))
}
