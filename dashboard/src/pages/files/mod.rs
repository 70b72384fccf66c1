//! The files of a sandbox that runs, and of a volume that no sandbox has: one way to look at them, and to change them.
//!
//! Looking is asked of the API, of which a viewer may ask it. What is changed in a sandbox goes through its data plane, with a
//! session that members get. Paths are in queries, never in fields: browsers send a line's end in a field as another one.

use askama::Template;
use axum::extract::{FromRequestParts, MatchedPath, Path, Query, RawPathParams};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::api::Problem;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Visit, with_query};

mod browser;
mod change;

pub(super) use browser::Browser;
pub(crate) use change::{act, upload};

/// What has files.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Sandbox(String),
    Volume(String),
}

impl<S: Send + Sync> FromRequestParts<S> for Place {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
        let id = params.iter().find(|(name, _)| *name == "id").map_or(String::new(), |(_, id)| segment(id));
        let is_volume = parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().contains("/volumes/"));
        Ok(if is_volume { Self::Volume(id) } else { Self::Sandbox(id) })
    }
}

impl Place {
    /// Its path in the API.
    pub(super) fn api(&self) -> String {
        match self {
            Self::Sandbox(id) => format!("/v1/sandboxes/{id}"),
            Self::Volume(id) => format!("/v1/volumes/{id}"),
        }
    }

    /// The page that shows what is at a path.
    fn page(&self) -> String {
        match self {
            Self::Sandbox(id) => format!("sandboxes/{id}/files"),
            Self::Volume(id) => format!("volumes/{id}"),
        }
    }

    /// Where files are sent to; what is done with them is below.
    fn files(&self) -> String {
        match self {
            Self::Sandbox(id) => format!("sandboxes/{id}/files"),
            Self::Volume(id) => format!("volumes/{id}/files"),
        }
    }

    /// Where a look begins.
    fn home(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "~",
            Self::Volume(_) => "/",
        }
    }
}

/// What is looked at.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct At {
    path: Option<String>,
    next_token: Option<String>,
}

/// The last name of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[derive(Template)]
#[template(path = "sandbox_files.html")]
struct SandboxPage {
    visit: Visit,
    id: String,
    state: String,
    /// Nothing of a sandbox that does not run.
    browser: Option<Browser>,
}

/// `GET /dashboard/{team}/sandboxes/{id}/files`: what is at a path of a sandbox that runs.
pub(crate) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    place: Place,
    Query(at): Query<At>,
) -> Result<Response, Refusal> {
    #[derive(Deserialize)]
    struct Sandbox {
        state: String,
    }
    let Sandbox { state } = visit.get(&place.api()).await?;
    let runs = ["ready", "checkpointing"].contains(&state.as_str());
    let browser = if runs { Some(Browser::look(&visit, &place, at).await) } else { None };
    let status = browser.as_ref().map_or(StatusCode::OK, Browser::status);
    Ok((status, page(&SandboxPage { visit, id, state, browser })).into_response())
}

/// `GET …/files/content`: a file, to be kept and never shown: a page in it would be one of this host.
pub(crate) async fn content(visit: Visit, place: Place, Query(at): Query<At>) -> Result<Response, Refusal> {
    let path = at.path.unwrap_or_default();
    let wanted = with_query(&format!("{}/files", place.api()), &[("path", Some(&path))]);
    let file = visit.stream(&wanted, None).await?;
    let length = file.headers().get(header::CONTENT_LENGTH).cloned();
    let disposition = format!("attachment; filename*=UTF-8''{}", segment(last(&path)));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        // Letters, digits and `%`.
        (header::CONTENT_DISPOSITION, disposition.parse().unwrap_or(HeaderValue::from_static("attachment"))),
    ];
    let mut response = (headers, file.into_body()).into_response();
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
    }
    Ok(response)
}
