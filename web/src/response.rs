//! Responses: pages, the refusals among them, and what all of them bear.

use askama::Template;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use sandpiper_http::error::ApiError;

use crate::problem::Problem;
use crate::session;
use crate::site::Site;

/// Only the style and the scripts that are served here, none in a page itself; no page within another's.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// What becomes of a request that gets no page. It travels as an extension of an empty response, and [`with_headers`] makes the page,
/// which knows whose site it is.
#[derive(Debug, Clone)]
pub enum Refusal {
    /// Nobody is signed in.
    SignIn,
    Problem(Problem),
    /// Another page, whole, in the place of the one that was asked for.
    Instead(StatusCode, String),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        if problem.status == StatusCode::UNAUTHORIZED { Self::SignIn } else { Self::Problem(problem) }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Problem::from(&error).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = match &self {
            Self::SignIn => StatusCode::SEE_OTHER,
            Self::Problem(problem) => problem.status,
            Self::Instead(status, _) => *status,
        };
        response.extensions_mut().insert(self);
        response
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    assets: String,
    home: &'static str,
    problem: Problem,
}

impl Refusal {
    fn page(self, site: &Site) -> Response {
        match self {
            Self::SignIn => {
                ([(header::SET_COOKIE, session::no_cookie())], Redirect::to(&site.sign_in())).into_response()
            }
            Self::Problem(problem) => {
                let template = ProblemPage { assets: site.folder(), home: site.root, problem };
                (template.problem.status, page(&template)).into_response()
            }
            Self::Instead(status, text) => (status, Html(text)).into_response(),
        }
    }
}

/// The page of a template.
pub fn page(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        // A template writes to a string, and fails if a value of it cannot be written.
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("This page cannot be shown: {error}")).into_response()
        }
    }
}

/// Makes a page of an error that no handler of the site made: a time-out, a wrong method. Other responses pass as they are.
pub fn render(site: &Site, mut response: Response, request_id: &str) -> Response {
    let (error, status) = (response.extensions_mut().remove::<ApiError>(), response.status());
    let problem = match error {
        Some(error) => Problem::new(error.status(), error.message()),
        None if status.is_client_error() && !response.headers().contains_key(header::CONTENT_TYPE) => {
            Problem::new(status, "This page does not take what was sent to it")
        }
        None => return response,
    };
    let mut page = Refusal::Problem(Problem { request_id: request_id.to_owned(), ..problem }).page(site);
    bear_headers(&mut page);
    page
}

/// The layer that makes pages of refusals, and puts on what every response bears.
pub async fn with_headers(State(site): State<Site>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        response = refusal.page(&site);
    }
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
