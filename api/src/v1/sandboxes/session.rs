//! `POST /v1/sandboxes/{id}/session`

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;
use serde::Serialize;
use utoipa::ToSchema;

use super::body::SessionBody;
use super::{check_runs, owned};
use crate::auth::WriteAccess;
use crate::errors;
use crate::mutation::SessionOf;
use crate::state::App;

/// Another way in.
#[derive(Debug, Serialize, ToSchema)]
pub struct NewSession {
    pub session: SessionBody,
}

/// Get a new session
///
/// For a live sandbox whose session ends soon, or is lost. Its deadline stays where it is, and other sessions go on.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/session",
    operation_id = "create_session",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 200, description = "The way in", body = NewSession))
)]
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = owned(&app, &caller, &id).await?;
    check_runs(&row)?;
    let session = app
        .agent
        .on_behalf_of(&caller.key_id)
        .session(&id)
        .await
        .map_err(|error| if error.is_not_found() { errors::no_sandbox(&id) } else { error.into() })?;
    Ok((Extension(SessionOf(vec![id])), Json(NewSession { session: session.into() })).into_response())
}
