//! Signing in and out.

use askama::Template;
use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::api::{Api, Call, Problem};
use crate::assets;
use crate::form::{Entrance, Sent};
use crate::response::{Refusal, SIGN_IN, page};
use crate::session::{cookie, no_cookie};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn {
    assets: String,
    /// What was entered before.
    email: String,
    problem: Option<String>,
}

/// A session that has begun.
#[derive(Deserialize)]
pub(crate) struct Begun {
    token: String,
    expires_at: Timestamp,
}

impl Begun {
    /// To the dashboard, with the session in a cookie.
    pub(crate) fn enter(&self) -> Response {
        let cookie = cookie(&self.token, self.expires_at, Timestamp::now());
        ([(header::SET_COOKIE, cookie)], Redirect::to("/dashboard")).into_response()
    }
}

/// `GET /dashboard/sign-in`
pub(crate) async fn show() -> Response {
    page(&SignIn { assets: assets::folder(), email: String::new(), problem: None })
}

/// `POST /dashboard/sign-in`
pub(crate) async fn sign_in(State(api): State<Api>, Entrance(fields): Entrance) -> Response {
    let email = fields.text("email").unwrap_or_default();
    let body = json!({"email": email, "password": fields.exact("password")});
    match api.call::<Begun>(Method::POST, "/v1/login", Some(body), Call::default()).await {
        Ok(begun) => begun.enter(),
        Err(problem) => {
            let form = SignIn { assets: assets::folder(), email: email.to_owned(), problem: Some(in_words(&problem)) };
            (problem.status, page(&form)).into_response()
        }
    }
}

/// `POST /dashboard/sign-out`
pub(crate) async fn sign_out(State(api): State<Api>, sent: Sent) -> Result<Response, Refusal> {
    let call = Call { session: Some(&sent.session), ..Call::default() };
    match api.call::<()>(Method::POST, "/v1/logout", None, call).await {
        // A session that is over is what was asked for.
        Err(problem) if problem.status != StatusCode::UNAUTHORIZED => Err(problem.into()),
        _ => Ok(([(header::SET_COOKIE, no_cookie())], Redirect::to(SIGN_IN)).into_response()),
    }
}

/// What is wrong, with the fields that are.
pub(crate) fn in_words(problem: &Problem) -> String {
    if problem.details.is_empty() {
        return problem.message.clone();
    }
    let words: Vec<_> = problem.details.iter().map(|detail| format!("{} {}", detail.field, detail.reason)).collect();
    words.join("; ")
}
