//! `GET /sandboxes/{id}`

use axum::Json;
use axum::extract::{Path, State};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use super::body::{SandboxDetail, Tokens};
use super::current;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::store::keys::Capability;

/// Show a sandbox, with a way in for keys that may write.
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Json<SandboxDetail>, ApiError> {
    let row = current(&app, &caller, &id).await?;
    // While the agent is away, what is known here is shown.
    let previews = app.agent.show(&id).await.map(|report| report.previews).unwrap_or_default();
    let tokens = match caller.capability {
        Capability::Write => app.agent.tokens(&id).await.ok(),
        Capability::Read => None,
    };
    let tokens = tokens.map(|tokens| Tokens::new(&row, tokens)).unwrap_or_default();
    Ok(Json(SandboxDetail::new(&row, previews, tokens)))
}
