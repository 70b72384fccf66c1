//! The error envelope of `/merchant` and `/operator`: a `google.rpc.Status` in JSON.
//!
//! ```json
//! {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The parameter countryCode is missing",
//!   "details": [
//!     {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "MISSING_PARAMETER", "domain": "sandpiper",
//!      "metadata": {"parameter": "countryCode"}},
//!     {"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": "req06f3…"}]}}
//! ```
//!
//! `status` is one of a few words, `reason` says which rule was broken; programs look at these, people at the message. A
//! request whose fields are wrong also gets a `google.rpc.BadRequest`, one that has to wait a `google.rpc.RetryInfo` and
//! the header `Retry-After`.
//!
//! As with [`ApiError`], a handler's error travels as an extension of an empty response and gets its body outermost, so
//! that responses of the framework itself (no such path, wrong method, time-out) have the same shape.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::error_chain::chain;
use sandpiper_web::Problem;
use sandpiper_web::problem::Detail;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Whose reasons these are.
const DOMAIN: &str = "sandpiper";
const TYPES: &str = "type.googleapis.com/google.rpc.";

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorBody {
    pub error: StatusBody,
}

/// What happened.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Status)]
pub struct StatusBody {
    /// The HTTP status again.
    #[schema(example = 400)]
    pub code: u16,
    /// `INVALID_ARGUMENT`, `UNAUTHENTICATED`, `PERMISSION_DENIED`, `NOT_FOUND`, `ALREADY_EXISTS`, `ABORTED`,
    /// `RESOURCE_EXHAUSTED`, `UNIMPLEMENTED`, `INTERNAL` or `UNAVAILABLE`.
    #[schema(example = "INVALID_ARGUMENT")]
    pub status: &'static str,
    /// What is wrong and what to do, for people.
    pub message: String,
    /// `google.rpc.ErrorInfo` (`reason`, `domain`, `metadata`) and `RequestInfo` always, `BadRequest` and `RetryInfo`
    /// where they apply, told apart by `@type`.
    #[schema(value_type = Vec<Object>)]
    pub details: Vec<Value>,
}

/// What kind of error; the words are those of `google.rpc.Code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    /// What is to be made is there already.
    AlreadyExists,
    /// In conflict with what is stored, or with another request.
    Aborted,
    ResourceExhausted,
    Unimplemented,
    Internal,
    Unavailable,
}

impl Code {
    /// The word in the envelope.
    fn as_str(self) -> &'static str {
        match self {
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::Unauthenticated => "UNAUTHENTICATED",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::Aborted => "ABORTED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
        }
    }

    fn http(self) -> StatusCode {
        match self {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unimplemented => StatusCode::METHOD_NOT_ALLOWED,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn of_http(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::NotFound,
            405 => Code::Unimplemented,
            409 => Code::Aborted,
            429 => Code::ResourceExhausted,
            400..=499 => Code::InvalidArgument,
            503 => Code::Unavailable,
            _ => Code::Internal,
        }
    }
}

/// One wrong field of a body or a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Where: `actualAmount`, `banks[3].name`.
    pub field: String,
    /// Why it is refused.
    pub description: String,
    /// In a file: from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// In a file: from 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl Violation {
    /// Of a field that needs no more than its name to be found.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self { field: field.into(), description: description.into(), line: None, column: None }
    }
}

/// A response other than success; boxed, for most results are none.
#[derive(Debug, Clone)]
pub struct RpcError(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    code: Code,
    /// Mostly [`Code::http`]; a body that is too large, say, keeps its own.
    http: StatusCode,
    reason: &'static str,
    message: String,
    metadata: BTreeMap<&'static str, String>,
    violations: Vec<Violation>,
    retry_after: Option<u64>,
    /// For the log only.
    cause: Option<String>,
}

impl RpcError {
    /// An error of this kind; `reason` is a word in capitals that no other rule has.
    pub fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            http: code.http(),
            reason,
            message: message.into(),
            metadata: BTreeMap::new(),
            violations: Vec::new(),
            retry_after: None,
            cause: None,
        }))
    }

    /// The same with a fact for programs.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.0.metadata.insert(name, value.into());
        self
    }

    /// 400 on a parameter that has to be given.
    pub fn missing_parameter(name: &str) -> Self {
        Self::new(Code::InvalidArgument, "MISSING_PARAMETER", format!("The parameter {name} is missing"))
            .with("parameter", name)
    }

    /// 400 on a parameter; `problem` goes on from its name: "must be …".
    pub fn invalid_parameter(name: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, "INVALID_PARAMETER", format!("The parameter {name} {problem}"))
            .with("parameter", name)
    }

    /// 400 on one field of the body; `problem` goes on from its name: "must be …".
    pub fn invalid_field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::invalid_fields(vec![Violation::new(field, problem)])
    }

    /// 400 on fields of the body.
    pub fn invalid_fields(violations: Vec<Violation>) -> Self {
        let message = match violations.as_slice() {
            [Violation { field, description, .. }] => format!("{field} {description}"),
            _ => "Fields of the body are not valid; `fieldViolations` says which and why".to_owned(),
        };
        let mut error = Self::new(Code::InvalidArgument, "INVALID_FIELD", message);
        error.0.violations = violations;
        error
    }

    /// 400 on places in an imported file; `total` counts also those that are not listed.
    pub fn invalid_file(violations: Vec<Violation>, total: usize) -> Self {
        let message =
            format!("Nothing was imported: the file has {total} errors; `fieldViolations` says where, up to a hundred");
        let mut error = Self::new(Code::InvalidArgument, "INVALID_FILE", message).with("errors", total.to_string());
        error.0.violations = violations;
        error
    }

    /// 401.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Code::Unauthenticated, "INVALID_KEY", message)
    }

    /// 403.
    pub fn permission_denied(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, reason, message)
    }

    /// 404, also for what belongs to another merchant or to the other realm.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, "NOT_FOUND", message)
    }

    /// 409 on a conflict with what is stored.
    pub fn aborted(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Code::Aborted, reason, message)
    }

    /// 409 on what is there already.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, "ALREADY_EXISTS", message)
    }

    /// 503 on what will work in `seconds`.
    pub fn unavailable(reason: &'static str, message: impl Into<String>, seconds: u64) -> Self {
        let mut error = Self::new(Code::Unavailable, reason, message);
        error.0.retry_after = Some(seconds);
        error
    }

    /// 429 on what may be done again in `seconds`.
    pub fn exhausted(reason: &'static str, message: impl Into<String>, seconds: u64) -> Self {
        let mut error = Self::new(Code::ResourceExhausted, reason, message);
        error.0.retry_after = Some(seconds);
        error
    }

    /// 500; `cause` goes to the log.
    pub fn internal(cause: impl Into<String>) -> Self {
        ApiError::internal(cause).into()
    }

    /// An envelope for a status that no handler chose.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => {
                Self::new(Code::NotFound, "NO_SUCH_PATH", "There is no such path; /payments-openapi.json lists them")
            }
            StatusCode::METHOD_NOT_ALLOWED => Self::new(
                Code::Unimplemented,
                "METHOD_NOT_ALLOWED",
                "This path does not take this method; /payments-openapi.json lists them",
            ),
            status if status.is_client_error() => {
                let mut error = Self::new(Code::of_http(status), "INVALID_REQUEST", "Invalid request");
                error.0.http = status;
                error
            }
            status => Self::internal(format!("unexplained status {status}")),
        }
    }

    fn body(self, request_id: &str) -> ErrorBody {
        let Parts { code, http, reason, message, metadata, violations, retry_after, .. } = *self.0;
        let of_type = |name: &str| format!("{TYPES}{name}");
        let mut details =
            vec![json!({"@type": of_type("ErrorInfo"), "reason": reason, "domain": DOMAIN, "metadata": metadata})];
        if !violations.is_empty() {
            details.push(json!({"@type": of_type("BadRequest"), "fieldViolations": violations}));
        }
        if let Some(seconds) = retry_after {
            details.push(json!({"@type": of_type("RetryInfo"), "retryDelay": format!("{seconds}s")}));
        }
        details.push(json!({"@type": of_type("RequestInfo"), "requestId": request_id}));
        ErrorBody { error: StatusBody { code: http.as_u16(), status: code.as_str(), message, details } }
    }
}

/// Errors of the parts that all of the API shares: keys, rate limits, JSON bodies, time-outs, panics.
impl From<ApiError> for RpcError {
    fn from(error: ApiError) -> Self {
        let http = error.status();
        let reason = match http.as_u16() {
            400 if error.details().is_empty() => "INVALID_REQUEST",
            400 => "INVALID_FIELD",
            401 => "INVALID_KEY",
            404 => "NOT_FOUND",
            413 => "TOO_LARGE",
            429 => "RATE_LIMITED",
            503 => "UNAVAILABLE",
            _ => "INTERNAL",
        };
        let mut converted = Self::new(Code::of_http(http), reason, error.message());
        converted.0.http = http;
        converted.0.violations =
            error.details().iter().map(|detail| Violation::new(&detail.field, &detail.reason)).collect();
        converted.0.retry_after = error.retry_after_seconds();
        converted.0.cause = error.cause().map(str::to_owned);
        converted
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NulCharacter => {
                let message = "A text in the request has the character NUL; leave it out";
                Self::new(Code::InvalidArgument, "NUL_CHARACTER", message)
            }
            _ => Self::internal(chain(&error)),
        }
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.http;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<RpcError> for Problem {
    /// For pages; what is for the log only goes there.
    fn from(error: RpcError) -> Self {
        let Parts { http, reason, message, violations, cause, .. } = *error.0;
        if let Some(cause) = cause {
            tracing::error!(reason, cause, "request for a page failed");
        }
        let details = violations.into_iter().map(|one| Detail { field: one.field, reason: one.description }).collect();
        Self { details, ..Self::new(http, message) }
    }
}

/// Whether errors under this path have this envelope.
pub fn speaks(path: &str) -> bool {
    ["/merchant", "/operator"]
        .iter()
        .any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Gives an error its body; responses that are none pass as they are.
pub fn render(mut response: Response, request_id: &str) -> Response {
    let status = response.status();
    let error = match (response.extensions_mut().remove::<RpcError>(), response.extensions_mut().remove::<ApiError>()) {
        (Some(error), _) => error,
        (None, Some(error)) => error.into(),
        (None, None) if status.is_client_error() || status.is_server_error() => RpcError::of_status(status),
        (None, None) => return response,
    };
    if let Some(cause) = &error.0.cause {
        tracing::error!(reason = error.0.reason, cause, "request failed");
    }
    let (http, retry_after) = (error.0.http, error.0.retry_after);
    let mut rendered = (http, axum::Json(error.body(request_id))).into_response();
    // What the framework says of itself stays: the `Allow` of a 405.
    for (name, value) in response.headers() {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            rendered.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(seconds) = retry_after {
        rendered.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if http == StatusCode::UNAUTHORIZED {
        rendered.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    rendered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_roots_speak_this_way() {
        for path in ["/merchant", "/merchant/api/v1/catalog", "/operator/", "/operator/v2/nothing"] {
            assert!(speaks(path), "{path}");
        }
        for path in ["/", "/v1/sandboxes", "/merchants", "/operators/v1", "/v1/merchant"] {
            assert!(!speaks(path), "{path}");
        }
    }

    #[test]
    fn shared_errors_keep_their_status_their_fields_and_their_wait() {
        let body = RpcError::from(ApiError::invalid_field("amount", "is missing")).body("req1").error;
        assert_eq!((body.code, body.status), (400, "INVALID_ARGUMENT"));
        assert_eq!(body.details[1]["fieldViolations"], json!([{"field": "amount", "description": "is missing"}]));

        let body = RpcError::from(ApiError::rate_limited(3)).body("req1").error;
        assert_eq!((body.code, body.status), (429, "RESOURCE_EXHAUSTED"));
        assert_eq!(body.details[1]["retryDelay"], "3s");

        let body = RpcError::from(ApiError::too_large(9)).body("req1").error;
        assert_eq!((body.code, body.status), (413, "INVALID_ARGUMENT"));
    }

    #[test]
    fn the_cause_of_an_internal_error_stays_inside() {
        let text = serde_json::to_string(&RpcError::internal("disk on fire").body("req1")).unwrap();
        assert!(!text.contains("fire") && text.contains("req1"), "{text}");
    }
}
