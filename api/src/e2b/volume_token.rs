//! The token for what is in one volume: sealed with a key of this host, for the volume and the API key that it was made for.
//!
//! It does what that key may, to that volume and nothing else, and ends when the key is revoked. It is never stored.

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sandpiper_http::error::ApiError;
use sandpiper_http::keys::presented_key;

use crate::auth::Caller;
use crate::state::App;

/// What tokens begin with.
const PREFIX: &str = "spv_";
/// Keeps what is sealed here apart from other sealed things.
const CONTEXT: &str = "volume token ";

/// A token for the volume of this id, as good as the caller's key.
///
/// # Errors
///
/// Where it cannot be sealed.
pub fn mint(app: &App, caller: &Caller, volume: &str) -> Result<String, ApiError> {
    let plain = format!("{} {}", caller.key_id, caller.team.id);
    let sealed = app.vault.seal(&format!("{CONTEXT}{volume}"), plain.as_bytes());
    let sealed = sealed.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(format!("{PREFIX}{sealed}"))
}

/// Establishes who asks for what is in a volume: the caller for whom the token was made. Requests have no other way in.
pub async fn authenticate(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let caller = async {
        let token = presented_key(&parts.headers)?.to_owned();
        let Path(volume) = Path::<String>::from_request_parts(&mut parts, &app).await.map_err(|_| not_a_token())?;
        caller(&app, &volume, &token).await
    };
    match caller.await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => error.into_response(),
    }
}

async fn caller(app: &App, volume: &str, token: &str) -> Result<Caller, ApiError> {
    let sealed = token.strip_prefix(PREFIX).ok_or_else(not_a_token)?;
    let plain = app.vault.unseal(&format!("{CONTEXT}{volume}"), sealed).map_err(|_| not_a_token())?;
    let plain = std::str::from_utf8(&plain).map_err(|_| not_a_token())?;
    let (key_id, team) = plain.split_once(' ').ok_or_else(not_a_token)?;
    let caller = Caller::again(app, key_id, team).await?.ok_or_else(not_a_token)?;
    app.rate_limits.check(&caller.key_id)?;
    Ok(caller)
}

fn not_a_token() -> ApiError {
    ApiError::unauthorized(
        "The token is not one of this volume, or its API key was revoked; get the volume for a new one",
    )
}
