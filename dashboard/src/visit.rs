//! Who looks at which team's page.

use askama::Template;
use axum::body::Body;
use axum::extract::{FromRef, FromRequest, FromRequestParts, OriginalUri, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::form_urlencoded::Serializer;

use crate::api::{Api, Call, Problem};
use crate::files::Files;
use crate::form::{self, Fields, Sent};
use crate::response::{Refusal, SITE};
use crate::session::{MaybeSession, Session};
use crate::view;
use crate::view::segment;

/// What a member may do; each may what those before may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Viewer,
    Member,
    Admin,
    Owner,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Member => "member",
            Self::Admin => "admin",
            Self::Owner => "owner",
        })
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct Team {
    pub slug: String,
    pub plan: String,
    pub is_personal: bool,
    pub role: Option<Role>,
    pub disabled: Option<Disabled>,
    pub created_at: Timestamp,
}

/// That the operator of the host has a team disabled.
#[derive(Debug, Clone, Deserialize)]
pub struct Disabled {
    pub at: Timestamp,
    pub reason: String,
}

/// What stands in the place of every page of a team that is disabled.
#[derive(Template)]
#[template(path = "disabled.html")]
struct DisabledPage<'a> {
    visit: &'a Visit,
    disabled: &'a Disabled,
}

#[derive(Debug, Clone, Deserialize)]
pub struct User {
    pub id: String,
    pub email: String,
    pub name: String,
}

#[derive(Debug, Deserialize)]
struct Me {
    user: Option<User>,
    team: Team,
}

#[derive(Debug, Deserialize)]
struct Teams {
    teams: Vec<Team>,
}

/// A member's visit to a page of a team: the one in the path, or the personal one where the path names none.
#[derive(Debug, Clone)]
pub struct Visit {
    api: Api,
    session: Session,
    pub user: User,
    pub team: Team,
    /// All of the user's.
    pub teams: Vec<Team>,
    /// Where the page is.
    pub path: String,
}

impl Visit {
    /// Asks the API for a document, for the team of this visit.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        self.call(Method::GET, path).await
    }

    /// Likewise, by another method.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn call<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, Problem> {
        self.api.call(method, path, None, self.as_member()).await
    }

    /// What is no document, as it comes; of this type, where the API has several.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn stream(&self, path: &str, accept: Option<&str>) -> Result<Response, Problem> {
        let call = Call { accept, ..self.as_member() };
        self.api.respond(Method::GET, path, None, call).await
    }

    fn as_member(&self) -> Call<'_> {
        Call { session: Some(&self.session), team: Some(&self.team.slug), ..Call::default() }
    }

    pub fn may_write(&self) -> bool {
        self.team.role >= Some(Role::Member)
    }

    pub fn may_manage(&self) -> bool {
        self.team.role >= Some(Role::Admin)
    }

    pub fn role(&self) -> Role {
        self.team.role.unwrap_or(Role::Viewer)
    }

    /// The path of one of the team's pages.
    pub fn at(&self, page: &str) -> String {
        format!("/dashboard/{}/{page}", self.team.slug)
    }

    /// Whether this page, or one below it, is the one that is looked at.
    pub fn is_at(&self, page: &str) -> bool {
        let path = self.at(page);
        self.path == path || self.path.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The word of this session's forms.
    pub fn form_word(&self) -> String {
        self.session.form_word()
    }

    /// Another name for each form of the page.
    pub fn once(&self) -> String {
        form::once()
    }

    pub fn assets(&self) -> String {
        SITE.folder()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Visit
where
    Api: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let api = Api::from_ref(state);
        let Ok(MaybeSession(session)) = MaybeSession::from_request_parts(parts, state).await;
        let session = session.ok_or(Refusal::SignIn)?;
        let team = team_of(parts).await?;
        let call = Call { session: Some(&session), team: team.as_deref(), ..Call::default() };
        let (me, teams) = tokio::try_join!(
            api.call::<Me>(Method::GET, "/v1/me", None, call),
            api.call::<Teams>(Method::GET, "/v1/teams?limit=100", None, call),
        )?;
        // Only a cookie that was set by hand is an API key.
        let user = me.user.ok_or(Refusal::SignIn)?;
        let path = parts.extensions.get::<OriginalUri>().map_or(parts.uri.path(), |uri| uri.path()).to_owned();
        let visit = Self { api, session, user, team: me.team, teams: teams.teams, path };
        match (&visit.team.disabled, team) {
            (Some(disabled), Some(_)) => {
                let page = DisabledPage { visit: &visit, disabled }.render();
                let page = page.map_err(|error| Problem::new(StatusCode::FORBIDDEN, error.to_string()))?;
                Err(Refusal::Instead(StatusCode::FORBIDDEN, page))
            }
            // What is of no team is of the user alone.
            _ => Ok(visit),
        }
    }
}

/// A form that a member has sent on a page of a team: what it is to do is asked of the API for that team.
#[derive(Debug)]
pub struct Order {
    api: Api,
    session: Session,
    /// Slug.
    pub team: String,
    pub fields: Fields,
}

impl Order {
    /// Has the API do it.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, Problem> {
        let call = Call { idempotency_key: self.fields.once(), ..self.as_member() };
        self.api.call(method, path, body, call).await
    }

    /// A document that has to be new, however often the form is sent.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn call<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, Problem> {
        self.api.call(method, path, None, self.as_member()).await
    }

    /// Has the API store the bytes of a body, which it reads as they come.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn store(&self, method: Method, path: &str, body: Body) -> Result<(), Problem> {
        self.api.store(method, path, body, self.as_member()).await.map(drop)
    }

    fn as_member(&self) -> Call<'_> {
        Call { session: Some(&self.session), team: Some(&self.team), ..Call::default() }
    }

    /// To one of the team's pages, where what was done is seen.
    pub fn then(&self, page: &str) -> Redirect {
        Redirect::to(&format!("/dashboard/{}/{page}", segment(&self.team)))
    }
}

impl<S: Send + Sync> FromRequest<S> for Order
where
    Api: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let team = team_of(&mut parts).await?.unwrap_or_default();
        let Sent { session, fields } = Sent::from_request(Request::from_parts(parts, body), state).await?;
        Ok(Self { api: Api::from_ref(state), session, team, fields })
    }
}

/// A form with files that a member has sent on a page of a team; the files are read as they come.
#[derive(Debug)]
pub struct Upload {
    /// With the fields before the files.
    pub order: Order,
    pub files: Files,
}

impl<S: Send + Sync> FromRequest<S> for Upload
where
    Api: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let team = team_of(&mut parts).await?.unwrap_or_default();
        let Ok(MaybeSession(session)) = MaybeSession::from_request_parts(&mut parts, state).await;
        let session = session.ok_or(Refusal::SignIn)?;
        let (fields, files) = Files::open(&parts.headers, body).await?;
        if !fields.are_of(&session) {
            return Err(form::foreign().into());
        }
        Ok(Self { order: Order { api: Api::from_ref(state), session, team, fields }, files })
    }
}

/// The team that the path names.
async fn team_of(parts: &mut Parts) -> Result<Option<String>, Refusal> {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let params = params.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    Ok(params.iter().find(|(name, _)| *name == "team").map(|(_, team)| team.to_owned()))
}

/// A path with these parameters, where they have a value.
pub fn with_query(path: &str, pairs: &[(&str, Option<&str>)]) -> String {
    let mut query = Serializer::new(String::new());
    for (name, value) in pairs {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}
