//! Who asks, and what they may do.
//!
//! A handler names the capability it needs as a parameter, [`ReadAccess`] or [`WriteAccess`], so it cannot be forgotten
//! without it being seen in the signature, and gets the caller's team from there. Checks come in this order: the key
//! (401), its rate limit (429), its capability (403); then the handler's.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use sandpiper_http::error::ApiError;
use sandpiper_http::keys::{not_a_key, presented_key};
use sandpiper_http::query::check_characters;

use crate::state::App;
use crate::store::keys::{ActiveKey, Capability};
use crate::store::teams::Team;

pub mod keys;

/// A caller whose key is valid and within its rate limit.
#[derive(Debug, Clone)]
pub struct Caller {
    pub key_id: String,
    pub capability: Capability,
    pub team: Team,
}

impl Caller {
    /// Checks the team that a request names, by slug or by id: a key acts for its own team only, and others do not exist
    /// for it.
    pub fn check_team(&self, named: Option<&str>) -> Result<(), ApiError> {
        match named {
            Some(team) if team != self.team.slug && team != self.team.id.as_str() => {
                Err(ApiError::not_found(format!("There is no team {team:?} that this API key acts for")))
            }
            _ => Ok(()),
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        // Established once per request: a mutation is authenticated before its body is read.
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let key = presented_key(&parts.headers)?;
        let hash = keys::hash(key).ok_or_else(not_a_key)?;
        let ActiveKey { id, capability, team } = app.store.keys.active(&hash).await?.ok_or_else(not_a_key)?;
        app.rate_limits.check(&id)?;
        let caller = Caller { key_id: id, capability, team };
        parts.extensions.insert(caller.clone());
        Ok(caller)
    }
}

/// Proof of a key that may at least list and inspect.
#[derive(Debug, Clone)]
pub struct ReadAccess(pub Caller);

impl FromRequestParts<App> for ReadAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        check_characters(&parts.uri)?;
        Ok(ReadAccess(caller))
    }
}

/// Proof of a key that may also create, change and delete.
#[derive(Debug, Clone)]
pub struct WriteAccess(pub Caller);

impl FromRequestParts<App> for WriteAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match caller.capability {
            Capability::Write => {
                check_characters(&parts.uri)?;
                Ok(WriteAccess(caller))
            }
            Capability::Read => Err(ApiError::insufficient_scope()),
        }
    }
}
