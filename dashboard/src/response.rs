//! Responses: pages, the refusals among them, and what all of them bear.

use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use sandpiper_http::error::ApiError;

use crate::api::Problem;
use crate::{assets, session};

/// Only the style and the script that are served here, none in a page itself; no page within another's.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
pub(crate) const SIGN_IN: &str = "/dashboard/sign-in";

/// What becomes of a request that gets no page.
#[derive(Debug, Clone)]
pub enum Refusal {
    /// Nobody is signed in.
    SignIn,
    Problem(Problem),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        if problem.status == StatusCode::UNAUTHORIZED { Self::SignIn } else { Self::Problem(problem) }
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    assets: String,
    problem: Problem,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::SignIn => ([(header::SET_COOKIE, session::no_cookie())], Redirect::to(SIGN_IN)).into_response(),
            Self::Problem(problem) => {
                (problem.status, page(&ProblemPage { assets: assets::folder(), problem })).into_response()
            }
        }
    }
}

/// The page of a template.
pub(crate) fn page(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        // A template writes to a string, and fails if a value of it cannot be written.
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("This page cannot be shown: {error}")).into_response()
        }
    }
}

/// Whether what is under a path is for people: an error there is a page.
pub fn speaks(path: &str) -> bool {
    path == "/dashboard" || path.starts_with("/dashboard/")
}

/// Makes a page of an error that no handler of here made: a time-out, a wrong method. Other responses pass as they are.
pub fn render(mut response: Response, request_id: &str) -> Response {
    let (error, status) = (response.extensions_mut().remove::<ApiError>(), response.status());
    let problem = match error {
        Some(error) => Problem::new(error.status(), error.message()),
        None if status.is_client_error() && !response.headers().contains_key(header::CONTENT_TYPE) => {
            Problem::new(status, "This page does not take what was sent to it")
        }
        None => return response,
    };
    let mut page = Refusal::Problem(Problem { request_id: request_id.to_owned(), ..problem }).into_response();
    bear_headers(&mut page);
    page
}

/// The layer that puts on what every response bears.
pub(crate) async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    bear_headers(&mut response);
    response
}

fn bear_headers(response: &mut Response) {
    let headers = response.headers_mut();
    let security = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    headers.extend(security.map(|(name, value)| (name, HeaderValue::from_static(value))));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
