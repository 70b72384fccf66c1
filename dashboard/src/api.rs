//! The API's own routes, called within the process.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
pub use sandpiper_web::Problem;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use crate::session::Session;

/// Responses are documents of the API, far smaller than this.
const MAX_RESPONSE: usize = 8 << 20;
const TEAM: &str = "sandpiper-team";

/// The routes; cheap to clone.
#[derive(Debug, Clone)]
pub struct Api(Arc<Router>);

/// One request: of whom, for which team, under which idempotency key, and for which type of response.
#[derive(Debug, Clone, Copy, Default)]
pub struct Call<'a> {
    pub session: Option<&'a Session>,
    pub team: Option<&'a str>,
    pub idempotency_key: Option<&'a str>,
    pub accept: Option<&'a str>,
}

impl Api {
    pub(crate) fn new(routes: Router) -> Self {
        Self(Arc::new(routes))
    }

    /// The document that a request is responded with; `()` or `Value` where there is none.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        call: Call<'_>,
    ) -> Result<T, Problem> {
        let response = self.respond(method, path, body, call).await?;
        let bytes = to_bytes(response.into_body(), MAX_RESPONSE).await.map_err(unreadable)?;
        serde_json::from_slice(if bytes.is_empty() { b"null" } else { &bytes }).map_err(unreadable)
    }

    /// A successful response as it is, for what is no document.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn respond(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        call: Call<'_>,
    ) -> Result<Response, Problem> {
        let (body, content_type) = match body {
            Some(body) => (Body::from(body.to_string()), Some("application/json")),
            None => (Body::empty(), None),
        };
        self.send(method, path, body, content_type, call).await
    }

    /// Has the API store the bytes of a body, which it reads as they come.
    ///
    /// # Errors
    ///
    /// What the API refuses it with.
    pub async fn store(&self, method: Method, path: &str, body: Body, call: Call<'_>) -> Result<Response, Problem> {
        self.send(method, path, body, Some("application/octet-stream"), call).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
        content_type: Option<&str>,
        call: Call<'_>,
    ) -> Result<Response, Problem> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(session) = call.session {
            request = request.header(header::AUTHORIZATION, session.authorization());
        }
        if let Some(team) = call.team {
            request = request.header(TEAM, team);
        }
        if let Some(key) = call.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(accept) = call.accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(body).map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        let Ok(response) = Router::clone(&self.0).oneshot(request).await;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = to_bytes(response.into_body(), MAX_RESPONSE).await.map_err(unreadable)?;
        let problem = serde_json::from_slice(&bytes).map_err(unreadable)?;
        Err(Problem { status, ..problem })
    }
}

/// A response that is not what the API promises.
fn unreadable(error: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::BAD_GATEWAY, format!("The API's response cannot be read: {error}"))
}
