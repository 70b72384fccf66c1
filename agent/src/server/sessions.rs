//! Sessions: whom they are for, and `/revocations`, their end. And the tokens that last as long as their sandbox.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use http::StatusCode;
use http::request::Parts;
use sandpiper_protocol::agent::{LastingTokens, Revocations, SESSION_KEY, Session};
use sandpiper_protocol::id;
use sandpiper_protocol::ids::SandboxId;

use super::App;
use super::error::{ApiError, Body};
use crate::sandbox::Record;

/// The API key that a session is for.
#[derive(Debug)]
pub(super) struct Holder(Option<String>);

impl<S: Sync> FromRequestParts<S> for Holder {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let key = parts.headers.get(SESSION_KEY).and_then(|value| value.to_str().ok());
        Ok(Self(key.filter(|key| id::is_valid("key", key)).map(str::to_owned)))
    }
}

/// `POST /revocations`
pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    Body(revocations): Body<Revocations>,
) -> Result<StatusCode, ApiError> {
    let sessions = Arc::clone(&app.sessions);
    // Writes a file.
    let done = tokio::task::spawn_blocking(move || sessions.revoke(revocations.keys)).await;
    match done {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(error)) => Err(ApiError::internal(format!("The sessions are revoked, but not for good: {error}"))),
        Err(error) => Err(ApiError::internal(error.to_string())),
    }
}

/// `GET /sandboxes/{id}/tokens`
pub(super) async fn tokens(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
) -> Result<Json<LastingTokens>, ApiError> {
    let record = app.find(&id)?;
    let sessions = &app.sessions;
    Ok(Json(LastingTokens { access_token: sessions.lasting(&record.id), traffic_token: sessions.traffic(&record.id) }))
}

impl App {
    /// A session for `holder`.
    pub(super) fn mint(&self, record: &Record, holder: &Holder) -> Session {
        let (access_token, expires_at) = self.sessions.mint(&record.id, holder.0.as_deref());
        Session { data_plane_url: self.urls.data_plane_url(&record.route_token), access_token, expires_at }
    }
}
