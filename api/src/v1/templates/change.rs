//! `GET/PATCH/DELETE /v1/templates/{slug}`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{TemplateBody, VisibilityBody, check_description};
use super::reference::{owned, visible};
use crate::auth::{ReadAccess, WriteAccess};
use crate::errors;
use crate::orchestration::build;
use crate::state::App;
use crate::store::templates::{Change, Removal, TemplateRow};
use crate::v1::sandboxes::validate::Problems;

/// What to change; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateTemplate)]
pub struct UpdateRequest {
    pub visibility: Option<VisibilityBody>,
    /// At most 1024 bytes.
    pub description: Option<String>,
}

/// Show a template
///
/// The team's own of this slug, or else the host's. One that another team has made public is `<team>/<slug>`, with the slash
/// as `%2F`.
#[utoipa::path(
    get,
    path = "/v1/templates/{slug}",
    operation_id = "show_template",
    tag = "templates",
    params(("slug" = String, Path, description = "Slug or id of the template")),
    responses((status = 200, description = "The template", body = TemplateBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(slug): Path<String>,
) -> Result<JsonBody<TemplateBody>, ApiError> {
    let row = visible(&app, &caller, &slug).await?;
    Ok(JsonBody(TemplateBody::new(&caller.team.id, row)))
}

/// Change a template
///
/// Its visibility or description. A template that is made private again stays what running sandboxes were made from.
#[utoipa::path(
    patch,
    path = "/v1/templates/{slug}",
    operation_id = "update_template",
    tag = "templates",
    params(("slug" = String, Path, description = "Slug or id of the template")),
    request_body = UpdateRequest,
    responses((status = 200, description = "Changed", body = TemplateBody))
)]
pub async fn update(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(slug): Path<String>,
    Json(request): Json<UpdateRequest>,
) -> Result<Response, ApiError> {
    let mut problems = Problems::default();
    check_description(request.description.as_deref().unwrap_or_default(), &mut problems);
    problems.into_result()?;
    let row = owned(&app, &caller, &slug).await?;
    let change = Change { visibility: request.visibility.map(Into::into), description: request.description };
    app.store.templates.change(&row.id, &change, app.clock.now()).await?;
    let row = visible(&app, &caller, &row.id).await?;
    let acted = Extension(Acted(vec![row.id.to_string()]));
    Ok((acted, JsonBody(TemplateBody::new(&caller.team.id, row))).into_response())
}

/// Delete a template
///
/// With all its versions. Refused with 409 `template_in_use` while one of them is being built, or a sandbox or checkpoint was
/// made from one.
#[utoipa::path(
    delete,
    path = "/v1/templates/{slug}",
    operation_id = "delete_template",
    tag = "templates",
    params(("slug" = String, Path, description = "Slug or id of the template")),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(slug): Path<String>,
) -> Result<Response, ApiError> {
    let row = owned(&app, &caller, &slug).await?;
    remove(&app, &row).await?;
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![row.id.to_string()]))).into_response())
}

/// Removes a template with all its versions.
///
/// # Errors
///
/// 409 while one of them is needed.
pub async fn remove(app: &App, row: &TemplateRow) -> Result<(), ApiError> {
    match app.store.templates.delete(&row.id, app.clock.now()).await? {
        Removal::Removed(versions) => {
            build::remove(app, versions);
            Ok(())
        }
        Removal::InUse(number, used) => Err(errors::version_in_use(row, number, &used)),
    }
}
