//! `GET/POST /v1/login/oidc`, `POST /v1/login/oidc/begin`: signing in at a provider of OpenID Connect, of which a browser is a part.
//!
//! Whoever begins keeps the transaction where nobody else gets it, goes to the address, and brings back what the provider gives. The
//! dashboard keeps it in a cookie.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_accounts::UserId;
use sandpiper_accounts::membership::{TOKEN, gone};
use sandpiper_accounts::oidc::{Admission, Callback, EntryError, Problem, Provider, Refusal, Transaction};
use sandpiper_db::audit;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::keys;
use sandpiper_http::query::NoParameters;
use sandpiper_http::request::RequestId;
use sandpiper_protocol::error_chain::chain;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::login::LoginBody;
use super::teams::invitations;
use crate::plan::Plan;
use crate::state::App;

/// Where one may sign in.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SignInProvider)]
pub struct ShowBody {
    /// Null where people sign in with passwords alone.
    pub provider: Option<ProviderBody>,
}

/// A provider of OpenID Connect.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OidcProvider)]
pub struct ProviderBody {
    /// What people call it.
    pub name: String,
    /// What it calls itself.
    pub issuer: String,
}

/// What is to come of it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BeginOidcLogin)]
pub struct BeginRequest {
    /// `spi_…`: an invitation that is accepted by signing in.
    pub invitation: Option<String>,
}

/// A sign-in under way.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OidcLoginBegun)]
pub struct BegunBody {
    /// At the provider, for a browser.
    pub authorization_url: String,
    /// Sealed, and as good as the sign-in: for `POST /v1/login/oidc`.
    pub transaction: String,
    pub expires_at: Timestamp,
}

/// What the provider has sent the browser back with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OidcLogin)]
pub struct CompleteRequest {
    pub transaction: String,
    pub state: String,
    /// Null where it signed nobody in.
    pub code: Option<String>,
    /// Why not.
    pub error: Option<String>,
    /// Who the provider says that it is.
    pub iss: Option<String>,
}

/// Show where one may sign in
///
/// The provider of OpenID Connect that this host has besides passwords, if any.
#[utoipa::path(
    get,
    path = "/v1/login/oidc",
    operation_id = "show_oidc_provider",
    tag = "accounts",
    security(()),
    responses((status = 200, description = "The provider", body = ShowBody))
)]
pub async fn show(State(app): State<App>, _: NoParameters) -> JsonBody<ShowBody> {
    let body = |provider: &Provider| {
        let settings = &provider.settings;
        ProviderBody { name: settings.name.clone(), issuer: settings.issuer.clone() }
    };
    JsonBody(ShowBody { provider: app.oidc.as_ref().map(body) })
}

/// Begin a sign-in at a provider
///
/// For a browser, which goes to `authorization_url`, and comes back to the dashboard. The sign-in lasts ten minutes.
#[utoipa::path(
    post,
    path = "/v1/login/oidc/begin",
    operation_id = "begin_oidc_login",
    tag = "accounts",
    security(()),
    request_body = BeginRequest,
    responses((status = 200, description = "Begun", body = BegunBody))
)]
pub async fn begin(
    State(app): State<App>,
    _: NoParameters,
    Json(BeginRequest { invitation }): Json<BeginRequest>,
) -> Result<JsonBody<BegunBody>, ApiError> {
    let (provider, now) = (provider(&app)?, app.clock.now());
    let invitation = match invitation {
        Some(token) => {
            let hash = keys::hash(TOKEN, &token).ok_or_else(gone)?;
            app.accounts.limits.check(&hash)?;
            let is_open = app.store.members.is_open(&hash, now).await?;
            Some(Some(hash).filter(|_| is_open).ok_or_else(gone)?)
        }
        None => None,
    };
    let (transaction, authorization_url) =
        provider.begin(invitation, now).await.map_err(|problem| unknown(provider, problem))?;
    let expires_at = transaction.expires_at;
    Ok(JsonBody(BegunBody { authorization_url, transaction: transaction.seal(&app.vault)?, expires_at }))
}

/// Sign in at a provider
///
/// Ends what `POST /v1/login/oidc/begin` began. Whom the provider knows under an e-mail address that it has verified is the user with
/// that address from then on, whatever becomes of the address; the password and the sessions that the user had before end. An invitation
/// with which it was begun is accepted.
#[utoipa::path(
    post,
    path = "/v1/login/oidc",
    operation_id = "log_in_with_oidc",
    tag = "accounts",
    security(()),
    request_body = CompleteRequest,
    responses((status = 200, description = "Signed in", body = LoginBody))
)]
pub async fn complete(
    State(app): State<App>,
    _: NoParameters,
    request_id: Option<Extension<RequestId>>,
    Json(CompleteRequest { transaction, state, code, error, iss }): Json<CompleteRequest>,
) -> Result<JsonBody<LoginBody>, ApiError> {
    let (provider, now) = (provider(&app)?, app.clock.now());
    let settings = &provider.settings;
    let callback = Callback { state, code: code.map(Zeroizing::new), error, issuer: iss };
    let transaction =
        Transaction::unseal(&app.vault, &transaction, now).ok_or_else(|| unknown(provider, Problem::Foreign))?;
    let invitation = transaction.invitation.clone();
    let person = provider.complete(transaction, callback).await.map_err(|problem| unknown(provider, problem))?;
    let entered = match &invitation {
        Some(hash) => app.store.members.accept_as(hash, &person, &settings.allowed_domains, Plan::Basic, now).await,
        None => {
            let admission = Admission { sign_up: settings.sign_up, allowed_domains: &settings.allowed_domains };
            app.store.identities.enter(&person, admission, now).await
        }
    };
    let request_id = request_id.map(|Extension(id)| id.0).unwrap_or_default();
    let entry = |team_id: String, user_id: Option<&UserId>| audit::Entry {
        at: now,
        team_id,
        key_id: "-".to_owned(),
        user_id: user_id.map(UserId::to_string),
        request_id: request_id.clone(),
        action: "POST /v1/login/oidc".to_owned(),
        resource: None,
        status: 403,
    };
    match entered {
        Ok((admitted, begun)) => {
            let (user, identity) = (admitted.user, admitted.identity);
            let personal = app.store.members.ensure_personal(&user, Plan::Basic, now).await?;
            let entry = audit::Entry {
                key_id: begun.session.id.to_string(),
                resource: Some(identity.to_string()),
                status: 200,
                ..entry(personal.id.to_string(), Some(&user.id))
            };
            app.store.audit.keep(vec![entry]).await;
            Ok(JsonBody(LoginBody::new(user, &begun)))
        }
        Err(EntryError::Refused { why, user }) => {
            let personal = match &user {
                Some(user) => app.store.members.personal(user).await?.map(|(team, _)| team.id.to_string()),
                None => None,
            };
            app.store.audit.keep(vec![entry(personal.unwrap_or_default(), user.as_ref())]).await;
            Err(refused(provider, why))
        }
        Err(EntryError::Invitation(error)) => Err(invitations::refused(error)),
        Err(EntryError::Store(error)) => Err(error.into()),
    }
}

fn provider(app: &App) -> Result<&Provider, ApiError> {
    app.oidc.as_ref().ok_or_else(|| {
        ApiError::not_found("This host has no provider of OpenID Connect; sign in with a password, with POST /v1/login")
    })
}

/// Why it is not known who somebody is.
fn unknown(provider: &Provider, problem: Problem) -> ApiError {
    let name = &provider.settings.name;
    let cause = chain(&problem);
    let unavailable = |status, message| ApiError::new(status, "provider_unavailable", message).because(cause.clone());
    match problem {
        Problem::Unreachable(_) | Problem::Token(_) => unavailable(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{name} does not respond; try again in a minute, or sign in with a password"),
        )
        .retry_after(60),
        Problem::Unbelievable(_) => unavailable(
            StatusCode::BAD_GATEWAY,
            format!("What {name} says of you is not as it must be, and nobody was signed in; the host's log says why"),
        ),
        Problem::Busy => {
            let message = "Too many users sign in at this moment; try again in a few seconds";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "capacity_unavailable", message).retry_after(5)
        }
        Problem::Foreign => ApiError::invalid(
            "This sign-in was not begun in this browser, was begun once more since, or took longer than ten minutes; begin again",
        ),
        Problem::Denied(_) => ApiError::unauthorized(format!("{name} signed nobody in; begin again")),
        Problem::Code(_) => ApiError::unauthorized(format!("{name} does not take this sign-in any more; begin again")),
    }
}

/// 403 to somebody who is known, and may not enter.
fn refused(provider: &Provider, why: Refusal) -> ApiError {
    let name = &provider.settings.name;
    let message = match why {
        Refusal::NoAddress => format!("{name} tells no e-mail address of yours, by which you would be found here"),
        Refusal::Unverified => {
            format!("{name} has not verified your e-mail address; verify it there, and sign in again")
        }
        Refusal::Domain => {
            format!("Your e-mail address at {name} is of a domain that may not enter; ask who operates this host")
        }
        Refusal::Unknown => {
            format!("Nobody here has your e-mail address at {name}; ask for an invitation, and accept it with {name}")
        }
        Refusal::LinkedToAnother => format!(
            "The account with your e-mail address is linked to somebody else at {name}; sign in with its password and unlink that"
        ),
    };
    ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_is_told_names_the_provider_and_what_to_do() {
        let settings = sandpiper_accounts::oidc::Settings {
            issuer: "https://login.example.com".to_owned(),
            client_id: "sandpiper".to_owned(),
            client_secret_file: None,
            origin: "https://sandpiper.example.com".to_owned(),
            name: "Example".to_owned(),
            scopes: Vec::new(),
            sign_up: false,
            allowed_domains: Vec::new(),
        };
        let provider = Provider::open(settings, "/callback", std::time::Duration::from_secs(1)).unwrap();
        let denied = unknown(&provider, Problem::Denied("<script>".to_owned()));
        assert_eq!(
            (denied.status(), denied.message()),
            (StatusCode::UNAUTHORIZED, "Example signed nobody in; begin again")
        );
        assert_eq!(refused(&provider, Refusal::Unknown).status(), StatusCode::FORBIDDEN);
    }
}
