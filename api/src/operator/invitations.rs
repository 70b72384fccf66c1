//! `POST /operator/v1/teams/{team}/invitations`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_accounts::membership::TOKEN;
use sandpiper_accounts::{Email, Operator};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::keys;
use sandpiper_http::query::NoParameters;

use super::teams::find;
use crate::state::App;
use crate::store::members::NewInvitation;
use crate::v1::teams::invitations::{CreateRequest, InvitationBody};

/// Invite somebody to any team
///
/// Makes a token for somebody who accepts it within seven days with `POST /v1/invitations/accept`. Nothing is sent: hand it on.
#[utoipa::path(
    post,
    path = "/operator/v1/teams/{team}/invitations",
    operation_id = "operator_create_invitation",
    tag = "operators",
    params(("team" = String, Path, description = "Slug or id of the team")),
    request_body = CreateRequest,
    responses((status = 201, description = "Made", body = InvitationBody))
)]
pub async fn create(
    _: Operator,
    State(app): State<App>,
    _: NoParameters,
    Path(team): Path<String>,
    Json(CreateRequest { role, email }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    let team = find(&app, &team).await?;
    if team.personal_of.is_some() {
        return Err(ApiError::conflict("A personal team has no other members; make a team for several users"));
    }
    let email = email.map(|email| email.parse::<Email>()).transpose();
    let email = email.map_err(|reason| ApiError::invalid_field("email", reason))?;
    let token = keys::generate(TOKEN);
    let hash = keys::hash(TOKEN, &token).ok_or_else(|| ApiError::internal("a new token has no hash"))?;
    let new = NewInvitation { role, email: email.as_ref(), invited_by: None, hash: &hash };
    let invitation = app.store.members.invite(&team.id, &new, app.clock.now()).await?;
    let acted = Extension(Acted(vec![invitation.id.clone()]));
    let body = InvitationBody::new(invitation, Some(token.to_string()));
    Ok((StatusCode::CREATED, acted, JsonBody(body)).into_response())
}
