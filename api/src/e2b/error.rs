//! The errors of this face: `{"code": 404, "message": "…", "error_code": "…"}`, by whose status and words the SDKs choose an
//! exception.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_http::error::ApiError;
use serde::Serialize;

/// First parts of the paths that are served here.
const ROOTS: [&str; 8] = ["sandboxes", "snapshots", "templates", "volumes", "volumecontent", "secrets", "v2", "v3"];

/// The body of every error.
#[derive(Debug, Serialize)]
struct ErrorBody {
    code: u16,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
}

/// Whether errors under this path have the form of this face.
pub fn speaks(path: &str) -> bool {
    path.split('/').nth(1).is_some_and(|root| ROOTS.contains(&root))
}

/// Gives an error its body; responses that are none pass as they are.
pub fn render(mut response: Response, _request_id: &str) -> Response {
    let status = response.status();
    let has_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"application/json"));
    let is_error = status.is_client_error() || status.is_server_error();
    let error = match response.extensions_mut().remove::<ApiError>() {
        Some(error) => error,
        None if is_error && !has_json => of_status(status),
        None => return response,
    };
    if let Some(cause) = error.cause() {
        tracing::error!(code = error.code(), cause, "request failed");
    }
    let status = status_of(&error);
    let body = ErrorBody { code: status.as_u16(), message: message(&error), error_code: error_code(error.code()) };
    let mut rendered = (status, axum::Json(body)).into_response();
    if let Some(allow) = response.headers_mut().remove(header::ALLOW) {
        rendered.headers_mut().insert(header::ALLOW, allow);
    }
    if let Some(seconds) = error.retry_after_seconds() {
        rendered.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    rendered
}

fn of_status(status: StatusCode) -> ApiError {
    match status {
        StatusCode::NOT_FOUND => ApiError::not_found("There is no such path"),
        StatusCode::METHOD_NOT_ALLOWED => {
            ApiError::new(status, "method_not_allowed", "This path does not take this method")
        }
        _ => ApiError::new(status, "internal", "The request could not be handled"),
    }
}

/// The SDKs know a full quota as too many requests, and nothing of 422.
fn status_of(error: &ApiError) -> StatusCode {
    match error.code() {
        "sandbox_quota_exceeded"
        | "checkpoint_quota_exceeded"
        | "volume_quota_exceeded"
        | "template_quota_exceeded" => StatusCode::TOO_MANY_REQUESTS,
        _ => error.status(),
    }
}

/// The SDKs show nothing but the message, so it has the fields, too.
fn message(error: &ApiError) -> String {
    let details: Vec<String> =
        error.details().iter().map(|detail| format!("{} {}", detail.field, detail.reason)).collect();
    if details.is_empty() { error.message().to_owned() } else { details.join("; ") }
}

fn error_code(code: &str) -> Option<&'static str> {
    match code {
        "capacity_unavailable" => Some("sandbox_capacity_unavailable"),
        "guest_failed" => Some("sandbox_create_failed"),
        "internal" => Some("internal_server_error"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_sdks_have_errors_of_theirs() {
        for path in ["/sandboxes", "/v2/sandboxes/sbx1", "/templates/a%2Fb", "/v3/templates"] {
            assert!(speaks(path), "{path}");
        }
        for path in ["/", "/v1/sandboxes", "/docs", "/sandboxesx", "/healthz", ""] {
            assert!(!speaks(path), "{path}");
        }
    }
}
