//! Signing in at a provider of OpenID Connect, and accepting an invitation by that.
//!
//! What the API gives at the beginning is in a cookie until the browser is back, so that nobody can have another's browser end a
//! sign-in of theirs. Whither one goes afterwards is never said in an address.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use sandpiper_web::entrance::{self, Begun, Entered};
use sandpiper_web::session::cookie_of;
use serde::Deserialize;
use serde_json::json;
use url::form_urlencoded;

use crate::api::{Api, Call, Problem};
use crate::form::Entrance;
use crate::response::SITE;
use crate::session::MaybeSession;

const COOKIE: &str = "__Host-sandpiper-oidc";

#[derive(Deserialize)]
struct Offer {
    provider: Option<Provider>,
}

#[derive(Deserialize)]
struct Provider {
    name: String,
}

/// A sign-in under way.
#[derive(Deserialize)]
struct UnderWay {
    authorization_url: String,
    transaction: String,
    expires_at: Timestamp,
}

/// What people call the provider, if there is one.
pub(super) async fn provider(api: &Api) -> Option<String> {
    let offer = api.call::<Offer>(Method::GET, "/v1/login/oidc", None, Call::default()).await;
    offer.ok()?.provider.map(|provider| provider.name)
}

/// `GET /dashboard/sign-in/oidc`
pub(crate) async fn begin(State(api): State<Api>) -> Response {
    match api.call::<UnderWay>(Method::POST, "/v1/login/oidc/begin", Some(json!({})), Call::default()).await {
        Ok(begun) => begun.keep_in(Redirect::to(&begun.authorization_url).into_response()),
        Err(problem) => entrance::sign_in(&SITE, "", provider(&api).await.as_deref(), Some(&problem)),
    }
}

/// `POST /dashboard/join/oidc`: with the token of an invitation.
pub(crate) async fn join(
    State(api): State<Api>,
    MaybeSession(session): MaybeSession,
    Entrance(fields): Entrance,
) -> Response {
    let token = fields.text("token").unwrap_or_default().to_owned();
    let name = provider(&api).await.unwrap_or_default();
    let body = json!({"invitation": token});
    match api.call::<UnderWay>(Method::POST, "/v1/login/oidc/begin", Some(body), Call::default()).await {
        Ok(begun) => begun.keep_in(entrance::go_to(&SITE, &name, &begun.authorization_url)),
        Err(problem) => {
            let provider = Some(name).filter(|name| !name.is_empty());
            let entered = Entered { is_signed_in: session.is_some(), token, provider, ..Entered::default() };
            entrance::join(&SITE, &entered, Some(&problem))
        }
    }
}

/// `GET /dashboard/sign-in/oidc/callback`: back from the provider.
pub(crate) async fn complete(State(api): State<Api>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let of = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let ended = match cookie_of(&headers, COOKIE) {
        Some(transaction) => {
            let body = json!({
                "transaction": transaction, "state": of("state").unwrap_or_default(), "code": of("code"),
                "error": of("error"), "iss": of("iss"),
            });
            api.call::<Begun>(Method::POST, "/v1/login/oidc", Some(body), Call::default()).await
        }
        None => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "This sign-in was not begun in this browser, or took longer than ten minutes; begin again",
        )),
    };
    let response = match ended {
        Ok(begun) => begun.enter(&SITE),
        Err(problem) => entrance::sign_in(&SITE, "", provider(&api).await.as_deref(), Some(&problem)),
    };
    with_cookie(response, &format!("{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax"))
}

impl UnderWay {
    /// The response, with the cookie. `Lax`: it must come along when the provider sends the browser back.
    fn keep_in(&self, response: Response) -> Response {
        let seconds = self.expires_at.duration_since(Timestamp::now()).as_secs().max(0);
        let transaction = &self.transaction;
        let attributes = format!("Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax");
        with_cookie(response, &format!("{COOKIE}={transaction}; {attributes}"))
    }
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    // Of letters, digits and marks: a sealed text is base64.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}
