//! Who asks, and what they may do.
//!
//! A handler names what it needs as a parameter, so it cannot be forgotten without it being seen in the signature, and gets the
//! caller's team from there: [`ReadAccess`], [`WriteAccess`], [`ManageAccess`] or, for what is of a user, [`UserAccess`] and
//! [`OwnAccess`]. Checks come in this order: the key or the session (401), its rate limit (429), the team (404), the team's rate limit
//! (429), whether it is disabled (403), what the caller may do (403); then the handler's.
//!
//! A key acts for its own team. A user who is signed in acts for one team in each request, as a member with a role: the one in
//! the path, the one that the query or the body names as `team`, that of the header `Sandpiper-Team`, or else the personal one.

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use sandpiper_accounts::sessions::LoginSessionId;
use sandpiper_accounts::{Role, UserId, sessions};
use sandpiper_http::error::ApiError;
use sandpiper_http::keys::{not_a_key, presented_key};
use sandpiper_http::query::{Pairs, check_characters};
use serde::Deserialize;

use crate::state::App;
use crate::store::keys::Capability;
use crate::store::teams::{Disabled, Team};

pub mod keys;
pub mod last_use;

/// Names the team that a user acts for.
const TEAM_HEADER: &str = "sandpiper-team";

/// A caller whose key or session is valid and within its rate limit.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Of the key, or of the login session.
    pub key_id: String,
    pub capability: Capability,
    pub team: Team,
    /// Who is signed in; `None`: it is an API key.
    pub signed_in: Option<SignedIn>,
}

/// Someone who is signed in.
#[derive(Debug, Clone)]
pub struct SignedIn {
    pub id: UserId,
    /// In the caller's team.
    pub role: Role,
    /// Whether the request names the team, other than in its body.
    names_team: bool,
}

impl SignedIn {
    /// Refuses who has nothing to do with keys and members of the team.
    pub fn check_manages(&self) -> Result<(), ApiError> {
        let Self { role, .. } = self;
        if *role >= Role::Admin {
            return Ok(());
        }
        Err(forbidden(format!("As a {role} of the team you may not do this; ask an admin or an owner of it")))
    }
}

impl Caller {
    /// Checks the team that a request names, by slug or by id: others than the caller's do not exist for it.
    pub fn check_team(&self, named: Option<&str>) -> Result<(), ApiError> {
        match named {
            Some(team) if team != self.team.slug && team != self.team.id.as_str() => Err(no_team(team)),
            _ => Ok(()),
        }
    }

    /// Refuses whoever acts for a team that is disabled.
    ///
    /// # Errors
    ///
    /// 403.
    pub fn check_enabled(&self) -> Result<(), ApiError> {
        let Some(Disabled { reason, .. }) = &self.team.disabled else { return Ok(()) };
        let message = format!(
            "The operator of this host has disabled the team {:?}: {reason}. Nothing of it is deleted; ask the operator to enable \
             it",
            self.team.slug
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, "team_disabled", message))
    }

    /// Whether the caller may change anything of the team, as far as that does not depend on what it is.
    pub fn may_write(&self) -> bool {
        self.capability == Capability::Write && self.team.disabled.is_none()
    }

    /// Whether the caller whom this key or login session is of still may read what this team does: for streams without an end.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn still_reads(app: &App, key_id: &str, team: &str) -> Result<bool, ApiError> {
        Ok(Self::again(app, key_id, team).await?.is_some_and(|caller| caller.team.disabled.is_none()))
    }

    /// The caller again whom this key or login session is of, for this team, as far as it still may: for what was made by it and
    /// is to end with it.
    pub async fn again(app: &App, key_id: &str, team: &str) -> Result<Option<Self>, ApiError> {
        let now = app.clock.now();
        if !key_id.starts_with(LoginSessionId::PREFIX) {
            let active = app.store.keys.active_by_id(key_id, now).await?;
            let key = active.filter(|key| key.team.id.as_str() == team);
            return Ok(key.map(|key| Self::with_key(key.id, key.capability, key.team)));
        }
        let Some(session) = app.store.login_sessions.active_by_id(key_id, now).await? else { return Ok(None) };
        let found = app.store.members.role_in(&session.user_id, team).await?;
        Ok(found.map(|(team, role)| Self::with_session(&session.id, session.user_id.clone(), (team, role), true)))
    }

    /// The team that a body names, for a user who has named none elsewhere.
    pub(crate) async fn for_team_of_body(self, app: &App, body: &[u8]) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Named {
            team: Option<String>,
        }
        let Some(SignedIn { id, names_team: false, .. }) = &self.signed_in else { return Ok(self) };
        // What is wrong with a body the handler says.
        let Ok(Named { team: Some(team) }) = serde_json::from_slice(body) else { return Ok(self) };
        let found = app.store.members.role_in(id, &team).await?.ok_or_else(|| no_team(&team))?;
        Ok(Self::with_session(&self.key_id, id.clone(), found, true))
    }

    /// Refuses who may only read.
    fn check_writes(&self) -> Result<(), ApiError> {
        self.check_enabled()?;
        match (self.capability, &self.signed_in) {
            (Capability::Write, _) => Ok(()),
            (Capability::Read, None) => Err(ApiError::insufficient_scope()),
            (Capability::Read, Some(_)) => {
                Err(forbidden("As a viewer of the team you may only read; ask an admin of it"))
            }
        }
    }

    fn with_key(key_id: String, capability: Capability, team: Team) -> Self {
        Self { key_id, capability, team, signed_in: None }
    }

    fn with_session(session: &str, id: UserId, (team, role): (Team, Role), names_team: bool) -> Self {
        let capability = if role >= Role::Member { Capability::Write } else { Capability::Read };
        Self { key_id: session.to_owned(), capability, team, signed_in: Some(SignedIn { id, role, names_team }) }
    }

    async fn establish(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let now = app.clock.now();
        let key = presented_key(&parts.headers)?;
        if let Some(hash) = sessions::hash(key) {
            let session = app.store.login_sessions.active(&hash, now).await?.ok_or_else(no_session)?;
            app.rate_limits.check(&session.id.to_string())?;
            app.last_use.note(&session.id, now);
            let named = named_team(parts).await?;
            let members = &app.store.members;
            let found = match &named {
                Some(team) => members.role_in(&session.user_id, team).await?.ok_or_else(|| no_team(team))?,
                None => members.personal(&session.user_id).await?.ok_or_else(no_session)?,
            };
            check_rate_of_team(app, &found.0)?;
            return Ok(Self::with_session(&session.id, session.user_id, found, named.is_some()));
        }
        let hash = keys::hash(key).ok_or_else(not_a_key)?;
        let key = app.store.keys.active(&hash, now).await?.ok_or_else(not_a_key)?;
        app.rate_limits.check(&key.id)?;
        check_rate_of_team(app, &key.team)?;
        app.last_use.note(&key.id, now);
        Ok(Self::with_key(key.id, key.capability, key.team))
    }
}

fn check_rate_of_team(app: &App, team: &Team) -> Result<(), ApiError> {
    app.team_rate_limits.check(&team.id.to_string())
}

/// The team that a request names, other than in its body.
async fn named_team(parts: &mut Parts) -> Result<Option<String>, ApiError> {
    let in_path = parts.uri.path().strip_prefix("/v1/teams/").and_then(|rest| rest.split('/').next());
    if let Some(team) = in_path.filter(|team| !team.is_empty()) {
        return Ok(Some(team.to_owned()));
    }
    // What is wrong with a query the handler says.
    let pairs = Pairs::from_request_parts(parts, &()).await.map(|pairs| pairs.0).unwrap_or_default();
    if let Some((_, team)) = pairs.into_iter().find(|(name, _)| name == "team") {
        return Ok(Some(team));
    }
    let Some(team) = parts.headers.get(TEAM_HEADER) else { return Ok(None) };
    let team = team.to_str().map_err(|_| ApiError::invalid_field("Sandpiper-Team", "must be a team's slug or id"))?;
    Ok(Some(team.to_owned()))
}

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        // Established once per request: a mutation is authenticated before its body is read.
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let caller = Self::establish(parts, app).await?;
        parts.extensions.insert(caller.clone());
        Ok(caller)
    }
}

/// Proof of one who may at least list and inspect.
#[derive(Debug, Clone)]
pub struct ReadAccess(pub Caller);

impl FromRequestParts<App> for ReadAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.check_enabled()?;
        check_characters(&parts.uri)?;
        Ok(ReadAccess(caller))
    }
}

/// Proof of one who looks at what is its own: of a user also while the team that the request is for is disabled, for that shows
/// the way to the user's other teams. An API key is its team's.
#[derive(Debug, Clone)]
pub struct OwnAccess(pub Caller);

impl FromRequestParts<App> for OwnAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        if caller.signed_in.is_none() {
            caller.check_enabled()?;
        }
        check_characters(&parts.uri)?;
        Ok(OwnAccess(caller))
    }
}

/// Proof of one who may also create, change and delete.
#[derive(Debug, Clone)]
pub struct WriteAccess(pub Caller);

impl FromRequestParts<App> for WriteAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.check_writes()?;
        check_characters(&parts.uri)?;
        Ok(WriteAccess(caller))
    }
}

/// Proof of someone signed in, whatever the role, and whatever has become of the team.
#[derive(Debug, Clone)]
pub struct UserAccess {
    pub caller: Caller,
    pub signed_in: SignedIn,
}

impl FromRequestParts<App> for UserAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let signed_in = caller.signed_in.clone().ok_or_else(|| {
            forbidden("This is for users, not for API keys: sign in with POST /v1/login, and send the session's token")
        })?;
        check_characters(&parts.uri)?;
        Ok(UserAccess { caller, signed_in })
    }
}

/// Proof of someone signed in who has to do with keys and members of the team: an admin or an owner.
#[derive(Debug, Clone)]
pub struct ManageAccess {
    pub caller: Caller,
    pub signed_in: SignedIn,
}

impl FromRequestParts<App> for ManageAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let UserAccess { caller, signed_in } = UserAccess::from_request_parts(parts, app).await?;
        caller.check_enabled()?;
        signed_in.check_manages()?;
        Ok(ManageAccess { caller, signed_in })
    }
}

fn forbidden(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message)
}

fn no_session() -> ApiError {
    ApiError::unauthorized("The session is over, or its token is misspelt: sign in again with POST /v1/login")
}

fn no_team(named: &str) -> ApiError {
    ApiError::not_found(format!("There is no team {named:?} that you act for; GET /v1/me lists those that there are"))
}
