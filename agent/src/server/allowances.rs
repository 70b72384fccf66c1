//! `/allowances`: what teams may hold here. It also comes with what has a sandbox start.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use sandpiper_protocol::agent::{Allowance, Allowances};

use super::App;
use super::error::{ApiError, Body};

/// `PUT /allowances`
pub(super) async fn replace(
    State(app): State<Arc<App>>,
    Body(Allowances { allowances }): Body<Allowances>,
) -> Result<StatusCode, ApiError> {
    app.take_allowances(allowances).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl App {
    /// Takes over that of a team of which a sandbox is to start.
    pub(super) async fn take_allowance(&self, allowance: Option<&Allowance>) -> Result<(), ApiError> {
        match allowance {
            Some(allowance) => self.take_allowances(vec![allowance.clone()]).await,
            None => Ok(()),
        }
    }

    async fn take_allowances(&self, allowances: Vec<Allowance>) -> Result<(), ApiError> {
        let known = self.sandboxes.context().allowances.clone();
        // May write a file.
        let taken = tokio::task::spawn_blocking(move || known.take(allowances)).await;
        let problem = match taken {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        Err(ApiError::internal(format!("What the team may hold cannot be written down: {problem}")))
    }
}
