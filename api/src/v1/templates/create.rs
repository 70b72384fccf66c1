//! `POST /v1/templates`

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{TemplateBody, VisibilityBody, check_description, check_slug};
use crate::auth::{Caller, WriteAccess};
use crate::errors;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::templates::{NewTemplate, TemplateId, TemplateRow, Visibility};
use crate::v1::sandboxes::validate::Problems;

/// The template to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateTemplate)]
pub struct CreateRequest {
    /// 1 to 63 lower-case letters, digits, `-`, `_` and `.`, beginning with a letter or digit; no other template of the team has
    /// it. One that the host has, too, stands in front of the host's for this team.
    pub slug: String,
    /// Slug or id of the key's own team, which is also the default.
    pub team: Option<String>,
    /// `private` by default.
    pub visibility: Option<VisibilityBody>,
    /// At most 1024 bytes.
    pub description: Option<String>,
}

/// Create a template
///
/// A name for versions, of which it has none yet: `POST /v1/templates/{slug}/versions` builds one.
#[utoipa::path(
    post,
    path = "/v1/templates",
    operation_id = "create_template",
    tag = "templates",
    request_body = CreateRequest,
    responses((status = 201, description = "Created", body = TemplateBody))
)]
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Json(request): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(request.team.as_deref())?;
    let mut problems = Problems::default();
    check_slug("slug", &request.slug, &mut problems);
    let description = request.description.unwrap_or_default();
    check_description(&description, &mut problems);
    problems.into_result()?;
    let new = NewTemplate {
        id: TemplateId::generate(),
        slug: request.slug,
        visibility: request.visibility.map_or(Visibility::Private, Visibility::from),
        description,
        created_at: app.clock.now(),
    };
    let row = make(&app, &caller, &new, claim.map(|Extension(claim)| claim).as_ref()).await?;
    Ok(response(&caller, row))
}

/// Makes a template of the caller's team.
///
/// # Errors
///
/// 409 on a slug that is taken, 422 over the quota.
pub async fn make(
    app: &App,
    caller: &Caller,
    new: &NewTemplate,
    claim: Option<&Claim>,
) -> Result<TemplateRow, ApiError> {
    let limits = &app.offer.of(caller.team.plan);
    let created = app.store.templates.create(&caller.team.id, new, &limits.quota, claim).await;
    created.map_err(|error| errors::no_new_template(error, &new.slug, limits))?;
    let row = app.store.templates.find(&caller.team.id, None, &new.id).await?;
    row.ok_or_else(|| ApiError::conflict(format!("The template {:?} was deleted a moment ago", new.slug)))
}

/// The response for a template that an earlier request with the same idempotency key made; `None` if it is gone.
///
/// # Errors
///
/// Those of the database.
pub async fn response_for_existing(app: &App, caller: &Caller, id: &str) -> Result<Option<Response>, ApiError> {
    let row = app.store.templates.find(&caller.team.id, None, id).await?;
    Ok(row.map(|row| response(caller, row)))
}

fn response(caller: &Caller, row: TemplateRow) -> Response {
    let location = [(header::LOCATION, format!("/v1/templates/{}", row.slug))];
    let acted = Extension(Acted(vec![row.id.to_string()]));
    (StatusCode::CREATED, location, acted, JsonBody(TemplateBody::new(&caller.team.id, row))).into_response()
}
