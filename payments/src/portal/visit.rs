//! Who looks at which realm of which merchant.

use axum::extract::{FromRequest, FromRequestParts, OriginalUri, RawPathParams, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use sandpiper_accounts::sessions::{self, LoginSessionId};
use sandpiper_accounts::{Role, User};
use sandpiper_db::{StoreError, audit};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::check_characters;
use sandpiper_http::request::RequestId;
use sandpiper_web::Problem;
use sandpiper_web::form::{Fields, Sent};
use sandpiper_web::response::Refusal;
use sandpiper_web::session::{MaybeSession, Session};

use super::SITE;
use crate::state::App;
use crate::store::merchant_users::Membership;
use crate::store::webhook_endpoints::EndpointKey;

/// Somebody who is signed in.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    session: Session,
    pub(super) session_id: LoginSessionId,
    pub(super) user: User,
    /// Where the user may do what.
    pub(super) memberships: Vec<Membership>,
    pub(super) request_id: String,
}

impl Visitor {
    /// Whom this session is of.
    async fn of(app: &App, session: Session, request_id: String) -> Result<Self, Refusal> {
        let hash = sessions::hash(session.token()).ok_or(Refusal::SignIn)?;
        let store = |error: StoreError| Refusal::from(ApiError::from(error));
        let active = app.accounts.sessions.active(&hash, app.clock.now()).await.map_err(store)?;
        let active = active.ok_or(Refusal::SignIn)?;
        app.rate_limits.check(&active.id.to_string())?;
        let (user, _) = app.accounts.users.by_id(&active.user_id).await.map_err(store)?.ok_or(Refusal::SignIn)?;
        let memberships = app.store.merchant_users.memberships(&user.id).await.map_err(store)?;
        Ok(Self { session, session_id: active.id, user, memberships, request_id })
    }

    /// The word of this session's forms.
    pub(super) fn form_word(&self) -> String {
        self.session.form_word()
    }

    /// The path and the name of each realm.
    pub(super) fn links(&self) -> Vec<(String, String)> {
        let link =
            |one: &Membership| (path_of(one, "webhooks"), format!("{}, {}", one.merchant_name, one.realm.title()));
        self.memberships.iter().map(link).collect()
    }

    pub(super) fn assets(&self) -> String {
        SITE.folder()
    }

    /// An entry of the audit on what this user does.
    pub(super) fn entry(&self, app: &App, merchant_id: &str, action: &str, resource: String) -> audit::Entry {
        audit::Entry {
            at: app.clock.now(),
            team_id: merchant_id.to_owned(),
            key_id: self.session_id.to_string(),
            user_id: Some(self.user.id.to_string()),
            request_id: self.request_id.clone(),
            action: action.to_owned(),
            resource: Some(resource),
            status: StatusCode::OK.as_u16(),
        }
    }
}

fn request_id(parts: &Parts) -> String {
    parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default()
}

impl FromRequestParts<App> for Visitor {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let Ok(MaybeSession(session)) = MaybeSession::from_request_parts(parts, app).await;
        let visitor = Self::of(app, session.ok_or(Refusal::SignIn)?, request_id(parts)).await?;
        check_characters(&parts.uri).map_err(ApiError::from)?;
        Ok(visitor)
    }
}

/// A user's visit to a page of a realm.
#[derive(Debug, Clone)]
pub(super) struct Visit {
    pub(super) visitor: Visitor,
    pub(super) membership: Membership,
    /// Where the page is.
    path: String,
}

impl Visit {
    /// The realm that is looked at.
    pub(super) fn place(&self) -> EndpointKey {
        EndpointKey { merchant_id: self.membership.merchant_id.clone(), realm: self.membership.realm }
    }

    /// Whether the user may save the URL, and send tests.
    pub(super) fn may_write(&self) -> bool {
        self.membership.role >= Role::Member
    }

    /// Whether the user may rotate the secret key, and has to do with users.
    pub(super) fn may_manage(&self) -> bool {
        self.membership.role >= Role::Admin
    }

    /// The path of one of the realm's pages.
    pub(super) fn at(&self, page: &str) -> String {
        path_of(&self.membership, page)
    }

    /// The path of this page of another realm.
    fn likewise(&self, membership: &Membership) -> String {
        path_of(membership, if self.is_at("users") { "users" } else { "webhooks" })
    }

    /// Whether this page is the one that is looked at.
    pub(super) fn is_at(&self, page: &str) -> bool {
        self.path == self.at(page)
    }

    /// Where else the user may look, each with its path and whether it is here.
    pub(super) fn places(&self) -> Vec<(&Membership, String, bool)> {
        let all = self.visitor.memberships.iter();
        all.map(|one| (one, self.likewise(one), *one == self.membership)).collect()
    }

    /// Refuses, and writes down, what needs a higher role.
    ///
    /// # Errors
    ///
    /// 403.
    pub(super) async fn check(&self, app: &App, needs: Role, action: &str, resource: &str) -> Result<(), Refusal> {
        let role = self.membership.role;
        if role >= needs {
            return Ok(());
        }
        let entry = self.visitor.entry(app, &self.membership.merchant_id, action, resource.to_owned());
        let status = StatusCode::FORBIDDEN;
        app.store.audit.keep(vec![audit::Entry { status: status.as_u16(), ..entry }]).await;
        let message = format!("As a {role} of this realm you may not do this; ask an admin or an owner of it");
        Err(Problem::new(status, message).into())
    }
}

fn path_of(membership: &Membership, page: &str) -> String {
    format!("{}/{}/{}/{page}", SITE.root, membership.merchant_id, membership.realm)
}

impl FromRequestParts<App> for Visit {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let visitor = Visitor::from_request_parts(parts, app).await?;
        let params = RawPathParams::from_request_parts(parts, app).await;
        let params = params.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
        let param = |wanted| params.iter().find(|(name, _)| *name == wanted).map_or("", |(_, value)| value);
        let (merchant, realm) = (param("merchant"), param("realm"));
        let is_here = |one: &&Membership| one.merchant_id == merchant && one.realm.as_str() == realm;
        let membership = visitor.memberships.iter().find(is_here).cloned();
        let missing = || Problem::new(StatusCode::NOT_FOUND, "There is no such realm of a merchant whose user you are");
        let path = parts.extensions.get::<OriginalUri>().map_or(parts.uri.path(), |uri| uri.path()).to_owned();
        Ok(Self { membership: membership.ok_or_else(missing)?, visitor, path })
    }
}

/// A form that a user has sent on a page of a realm.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) visit: Visit,
    pub(super) fields: Fields,
}

impl FromRequest<App> for Order {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::from_request_parts(&mut parts, app).await?;
        let Sent { fields, .. } = Sent::from_request(Request::from_parts(parts, body), app).await?;
        Ok(Self { visit, fields })
    }
}

/// `GET /portal`: to the webhooks of the first realm.
pub(super) async fn to_home(visitor: Visitor) -> Response {
    match visitor.memberships.first() {
        Some(first) => Redirect::to(&path_of(first, "webhooks")).into_response(),
        None => super::account::page_of(visitor, None),
    }
}

/// What is not there.
pub(super) async fn no_page(OriginalUri(uri): OriginalUri) -> Refusal {
    Problem::new(StatusCode::NOT_FOUND, format!("There is no page {}", uri.path())).into()
}
