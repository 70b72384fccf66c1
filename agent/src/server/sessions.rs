//! Sessions: whom they are for, and `/revocations`, their end.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use http::StatusCode;
use http::request::Parts;
use sandpiper_protocol::agent::{Revocations, SESSION_KEY, Session};
use sandpiper_protocol::id;

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

impl App {
    /// A session for `holder`.
    pub(super) fn mint(&self, record: &Record, holder: &Holder) -> Session {
        let (access_token, expires_at) = self.sessions.mint(&record.id, holder.0.as_deref());
        Session { data_plane_url: self.urls.data_plane_url(&record.route_token), access_token, expires_at }
    }
}
