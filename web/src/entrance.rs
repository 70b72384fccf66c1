//! The pages for who is not signed in: signing in, and accepting an invitation.
//!
//! The link of an invitation is `…/join#spi_…`: what follows `#` never leaves the browser before the form is sent, so the token is in
//! no log of addresses.

use askama::Template;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;

use crate::problem::Problem;
use crate::response::page;
use crate::session::{cookie, no_cookie};
use crate::site::Site;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    assets: String,
    root: &'static str,
    /// What was entered before.
    email: &'a str,
    /// Where else one may sign in.
    provider: Option<&'a str>,
    problem: Option<String>,
}

/// What somebody has entered who accepts an invitation.
#[derive(Debug, Clone, Default)]
pub struct Entered {
    pub is_signed_in: bool,
    pub token: String,
    pub email: String,
    pub name: String,
    /// Where else one may sign in.
    pub provider: Option<String>,
}

#[derive(Template)]
#[template(path = "join.html")]
struct Join<'a> {
    assets: String,
    root: &'static str,
    entered: &'a Entered,
    problem: Option<String>,
}

#[derive(Template)]
#[template(path = "go_to.html")]
struct GoTo<'a> {
    assets: String,
    provider: &'a str,
    url: &'a str,
}

/// A session that has begun.
#[derive(Deserialize)]
pub struct Begun {
    pub token: String,
    pub expires_at: Timestamp,
}

impl Begun {
    /// To the site's first page, with the session in a cookie.
    pub fn enter(&self, site: &Site) -> Response {
        let cookie = cookie(&self.token, self.expires_at, Timestamp::now());
        ([(header::SET_COOKIE, cookie)], Redirect::to(site.root)).into_response()
    }
}

/// The page on which one signs in, with a password or at a provider of this name, and with what was wrong the last time.
pub fn sign_in(site: &Site, email: &str, provider: Option<&str>, problem: Option<&Problem>) -> Response {
    let problem_in_words = problem.map(Problem::in_words);
    let template = SignIn { assets: site.folder(), root: site.root, email, provider, problem: problem_in_words };
    (status(problem), page(&template)).into_response()
}

/// To the page on which one signs in, without the cookie.
pub fn signed_out(site: &Site) -> Response {
    ([(header::SET_COOKIE, no_cookie())], Redirect::to(&site.sign_in())).into_response()
}

/// The page on which an invitation is accepted, with what was wrong the last time.
pub fn join(site: &Site, entered: &Entered, problem: Option<&Problem>) -> Response {
    let template = Join { assets: site.folder(), root: site.root, entered, problem: problem.map(Problem::in_words) };
    (status(problem), page(&template)).into_response()
}

/// The page that has a browser go on to a provider. Where a form leads elsewhere, the content security policy stops it.
pub fn go_to(site: &Site, provider: &str, url: &str) -> Response {
    page(&GoTo { assets: site.folder(), provider, url })
}

fn status(problem: Option<&Problem>) -> StatusCode {
    problem.map_or(StatusCode::OK, |problem| problem.status)
}
