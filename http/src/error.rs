//! The error envelope: `{"error": "<code>", "message": "…", "request_id": "…", …}`.
//!
//! A handler returns an [`ApiError`]; it travels as an extension of an empty response, and [`render`] writes the body where
//! the request's id is known, outermost. So responses that the framework makes by itself (no such route, wrong method) get
//! the same envelope.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_db::StoreError;
use sandpiper_protocol::error_chain::chain;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

// `Q` is what a quota is: only the side that has quotas knows, and they get here in JSON.
/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody<Q = Value> {
    /// What kind of error, for programs: `invalid_request`, `unauthorized`, `insufficient_scope`, `plan_required`,
    /// `not_found`, `conflict`, `invalid_state`, `sandbox_quota_exceeded`, `rate_limited`, `capacity_unavailable`, …
    #[schema(example = "invalid_request")]
    pub error: String,
    /// What is wrong and what to do, for people.
    pub message: String,
    /// Also in the response's `X-Request-Id`; name it when asking for help.
    pub request_id: String,
    /// Which fields are wrong, for `invalid_request`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub details: Vec<Detail>,
    /// For `sandbox_quota_exceeded`: as in the limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Q>,
}

/// One wrong field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ErrorDetail)]
pub struct Detail {
    /// Where: `lifecycle.on_timeout`, `query[state][]`, `Idempotency-Key`.
    pub field: String,
    /// Why it is refused.
    pub reason: String,
}

/// A response other than success; boxed, for most results are none.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    status: StatusCode,
    code: &'static str,
    message: String,
    details: Vec<Detail>,
    quota: Option<Value>,
    retry_after: Option<u64>,
    /// For the log only.
    cause: Option<String>,
}

impl ApiError {
    /// With this status; `code` says to programs what kind of error it is.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Parts {
            status,
            code,
            message,
            details: Vec::new(),
            quota: None,
            retry_after: None,
            cause: None,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        change(&mut self.0);
        self
    }

    /// 400 on a request that as a whole makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// 400 on one field.
    pub fn invalid_field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::invalid_fields(vec![Detail { field: field.into(), reason: reason.into() }])
    }

    /// 400 on several fields.
    pub fn invalid_fields(details: Vec<Detail>) -> Self {
        Self::invalid("The request is not valid; `details` says which fields and why")
            .with(|error| error.details = details)
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// 403 on a key that may only read.
    pub fn insufficient_scope() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "insufficient_scope",
            "This API key may only read; use a key with the capability `write`",
        )
    }

    /// 404, also for what belongs to another team.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 409 on a state in which this cannot be done.
    pub fn invalid_state(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_state", message)
    }

    /// 409 on a collision with another request.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// 409 on an idempotency key whose first request has not ended.
    pub fn idempotency_in_progress() -> Self {
        let message = "The first request with this Idempotency-Key is still being worked on; ask again in a second";
        Self::new(StatusCode::CONFLICT, "idempotency_in_progress", message).retry_after(1)
    }

    /// 422 on an idempotency key that was used for another request.
    pub fn idempotency_key_reused() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency_key_reused",
            "This Idempotency-Key was used for another request in the last 24 hours; choose a new one",
        )
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("The request body is over the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// 429.
    pub fn rate_limited(seconds: u64) -> Self {
        let message = format!("Too many requests; try again in {seconds} s");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message).retry_after(seconds)
    }

    /// 500; `cause` goes to the log.
    pub fn internal(cause: impl Into<String>) -> Self {
        let message = "Something went wrong here; the request id tells the operator what";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message).because(cause)
    }

    /// 503 on a request that took too long.
    pub fn timed_out() -> Self {
        let message =
            "The request took too long; if it changes something, look whether it was done before repeating it";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "timed_out", message).retry_after(5)
    }

    /// The same, to be tried again in so many seconds.
    pub fn retry_after(self, seconds: u64) -> Self {
        self.with(|error| error.retry_after = Some(seconds))
    }

    /// The same, with what goes to the log.
    pub fn because(self, cause: impl Into<String>) -> Self {
        self.with(|error| error.cause = Some(cause.into()))
    }

    /// The same, with the quota that the request would exceed.
    pub fn with_quota(self, quota: impl Serialize) -> Self {
        self.with(|error| error.quota = serde_json::to_value(quota).ok())
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// What kind of error, for programs.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// What is wrong, for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Which fields are wrong.
    pub fn details(&self) -> &[Detail] {
        &self.0.details
    }

    /// When to try again.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.0.retry_after
    }

    /// What goes to the log.
    pub fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// An envelope for a status that no handler chose.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::not_found("There is no such path; /docs lists them"),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(status, "method_not_allowed", "This path does not take this method; /docs lists them")
            }
            status if status.is_client_error() => Self::new(status, "invalid_request", "Invalid request"),
            status => Self::internal(format!("unexplained status {status}")).with(|error| error.status = status),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NulCharacter => Self::invalid("A text in the request has the character NUL; leave it out"),
            StoreError::Busy => Self::timed_out().because(chain(&error)),
            _ => Self::internal(chain(&error)),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status();
        response.extensions_mut().insert(self);
        response
    }
}

/// Gives an error its body; responses that are none pass as they are.
pub fn render(mut response: Response, request_id: &str) -> Response {
    let status = response.status();
    let has_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"application/json"));
    let error = match response.extensions_mut().remove::<ApiError>() {
        Some(error) => *error.0,
        None if (status.is_client_error() || status.is_server_error()) && !has_json => *ApiError::of_status(status).0,
        None => return response,
    };
    if let Some(cause) = &error.cause {
        tracing::error!(code = error.code, cause, "request failed");
    }
    let body = ErrorBody {
        error: error.code.to_owned(),
        message: error.message,
        request_id: request_id.to_owned(),
        details: error.details,
        quota: error.quota,
    };
    let mut rendered = (error.status, axum::Json(body)).into_response();
    // What the framework says of itself stays: the `Allow` of a 405.
    for (name, value) in response.headers() {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            rendered.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(seconds) = error.retry_after {
        rendered.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.status == StatusCode::UNAUTHORIZED {
        rendered.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    rendered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_is_busy_says_when_to_try_again_and_one_that_fails_does_not() {
        let busy = ApiError::from(StoreError::Busy);
        assert_eq!((busy.status(), busy.retry_after_seconds()), (StatusCode::SERVICE_UNAVAILABLE, Some(5)));

        let failed = ApiError::from(StoreError::Unwritten);
        assert_eq!((failed.status(), failed.retry_after_seconds()), (StatusCode::INTERNAL_SERVER_ERROR, None));
    }
}
