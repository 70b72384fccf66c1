//! What the proxy answers itself: JSON for programs, a page for people.

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, RETRY_AFTER, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use sandpiper_protocol::agent::{SandboxState, TEAM_DISABLED};
use serde::Serialize;
use tracing::debug;

use super::WakeError;
use super::credentials::{Denied, TrafficDenied};
use super::page::{self, Page};
use super::stats::Outcome;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Why a request does not reach a guest, or its response not the client.
///
/// 502 and the wording of "not found" and "port is not open" are what the E2B SDKs expect of a proxy: that is how they
/// tell a sandbox that is gone from an application that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request contradicts itself or HTTP; the text says how.
    Invalid(&'static str),
    /// `CONNECT`: this is no forward proxy.
    ConnectMethod,
    /// The client paused for too long in the middle of its request.
    SlowUpload,
    UnknownHost,
    SandboxNotFound,
    /// Nobody gets through to what the sandbox's team has.
    TeamDisabled,
    NotRunning(SandboxState),
    /// It is paused, and could not be resumed for this request.
    NotWoken(WakeError),
    PortNotExposed(u16),
    PortClosed(u16),
    Unauthorized(Denied),
    /// The port is open to holders of a token alone.
    NoTraffic(TrafficDenied),
    /// Too many requests of this sandbox are in flight.
    SandboxBusy,
    /// The memory that all sandboxes share is used up, and this one has had what it is guaranteed.
    NoMemory,
    /// Too many requests of this client to this sandbox are in flight.
    TooMany,
    /// The monitor or the guest accepts no connection.
    Unreachable,
    /// The guest closed the connection before it had responded, or answered something that is not HTTP.
    BrokenAnswer,
    /// Nothing moved for the whole idle time.
    TimedOut,
    /// The API did not respond, or may not be asked now.
    Api(ApiRefusal),
}

/// Why a request does not reach the API, or its response not the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiRefusal {
    /// It accepts no connection.
    Down,
    /// It closed the connection before it had responded, or answered something that nobody asked for.
    BrokenAnswer,
    TimedOut,
    /// Too many requests to it are in flight.
    Busy,
    /// The memory for requests is used up.
    NoMemory,
    /// Too many requests of this client to it are in flight.
    TooMany,
}

/// A refusal in words.
struct Words {
    status: StatusCode,
    /// For programs to tell apart.
    error: &'static str,
    /// For people, above the message.
    title: &'static str,
    message: &'static str,
}

/// The JSON body. The E2B SDKs read `message`, `code` and `sandboxId`, our own clients `error`.
#[derive(Serialize)]
struct Document<'a> {
    error: &'static str,
    message: &'static str,
    /// Where the request named the sandbox by its id.
    #[serde(rename = "sandboxId", skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// Also in `X-Request-Id`, and in the agent's log.
    request_id: &'a str,
    code: u16,
}

impl Refusal {
    /// The response to a request whose header fields were `asked`, and which named this sandbox by its id, if it did.
    pub(super) fn response(self, asked: &RequestedForm, sandbox_id: Option<&str>) -> Response<Bytes> {
        let words = self.words();
        let request_id = format!("req{:032x}", rand::random::<u128>());
        debug!(request_id, refusal = ?self, "Request refused");
        let (content_type, body) = match asked {
            RequestedForm::Page => {
                let Words { status, title, message, .. } = words;
                let page = Page { status, title, message, port: self.port(), request_id: &request_id };
                ("text/html; charset=utf-8", page.render())
            }
            RequestedForm::Json => ("application/json", json(&words, sandbox_id, self.port(), &request_id)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = words.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(VARY, HeaderValue::from_static("accept"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CONTENT_SECURITY_POLICY, page::POLICY.clone());
        // A program in a browser may read why it was refused; nothing here is secret.
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        if let Ok(request_id) = HeaderValue::from_str(&request_id) {
            headers.insert(X_REQUEST_ID, request_id);
        }
        if let Some(challenge) = self.challenge() {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        response
    }

    /// How it is counted.
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Refusal::Invalid(_) | Refusal::ConnectMethod | Refusal::SlowUpload => Outcome::Invalid,
            Refusal::UnknownHost | Refusal::SandboxNotFound | Refusal::PortNotExposed(_) => Outcome::NotFound,
            Refusal::Unauthorized(_)
            | Refusal::NoTraffic(_)
            | Refusal::TeamDisabled
            | Refusal::NotWoken(WakeError::TeamDisabled) => Outcome::Unauthorized,
            Refusal::SandboxBusy
            | Refusal::NoMemory
            | Refusal::TooMany
            | Refusal::NotWoken(WakeError::QuotaExceeded)
            | Refusal::Api(ApiRefusal::Busy | ApiRefusal::NoMemory | ApiRefusal::TooMany) => Outcome::Limited,
            Refusal::NotRunning(_)
            | Refusal::NotWoken(_)
            | Refusal::PortClosed(_)
            | Refusal::Unreachable
            | Refusal::BrokenAnswer
            | Refusal::TimedOut
            | Refusal::Api(ApiRefusal::Down | ApiRefusal::BrokenAnswer | ApiRefusal::TimedOut) => Outcome::Unavailable,
        }
    }

    fn challenge(self) -> Option<&'static str> {
        match self {
            Refusal::Unauthorized(Denied::Missing) => Some(r#"Bearer realm="sandpiper""#),
            Refusal::Unauthorized(_) => Some(r#"Bearer realm="sandpiper", error="invalid_token""#),
            _ => None,
        }
    }

    /// In seconds.
    fn retry_after(self) -> Option<&'static str> {
        match self {
            Refusal::SandboxBusy | Refusal::NoMemory | Refusal::TooMany => Some("1"),
            Refusal::Api(ApiRefusal::BrokenAnswer | ApiRefusal::TimedOut) => None,
            Refusal::Api(_) => Some("1"),
            Refusal::NotWoken(WakeError::NoRoom | WakeError::QuotaExceeded | WakeError::VolumeTaken) => Some("10"),
            _ => None,
        }
    }

    fn words(self) -> Words {
        let (status, error, title, message) = match self {
            Refusal::Invalid(message) => (StatusCode::BAD_REQUEST, "invalid_request", "Invalid request", message),
            Refusal::ConnectMethod => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "Method not allowed",
                "CONNECT is not served here: ask the sandbox's own host name",
            ),
            Refusal::SlowUpload => (
                StatusCode::REQUEST_TIMEOUT,
                "request_timeout",
                "Request timed out",
                "The request's body paused for too long: send it again without pauses",
            ),
            Refusal::UnknownHost => (
                StatusCode::NOT_FOUND,
                "unknown_host",
                "Unknown address",
                "No sandbox has this host name: use the data-plane or preview URL that the API gave",
            ),
            Refusal::SandboxNotFound => {
                (StatusCode::BAD_GATEWAY, "sandbox_not_found", "No such sandbox", "The sandbox was not found")
            }
            Refusal::TeamDisabled => {
                (StatusCode::FORBIDDEN, TEAM_DISABLED, "The sandbox's team is disabled", ASK_THE_OPERATOR)
            }
            Refusal::NotRunning(state) => {
                (StatusCode::BAD_GATEWAY, "sandbox_not_running", "The sandbox is not running", not_running(state))
            }
            Refusal::NotWoken(error) => {
                let (status, code, message) = not_woken(error);
                (status, code, "The sandbox did not wake up", message)
            }
            Refusal::PortNotExposed(_) => (
                StatusCode::NOT_FOUND,
                "port_not_exposed",
                "Port not exposed",
                "The sandbox does not expose this port: expose it first",
            ),
            Refusal::PortClosed(_) => (
                StatusCode::BAD_GATEWAY,
                "port_closed",
                "Nothing listens here yet",
                "The sandbox is running but port is not open",
            ),
            Refusal::Unauthorized(denied) => {
                (StatusCode::UNAUTHORIZED, "unauthorized", "Access token needed", denied_message(denied))
            }
            Refusal::NoTraffic(denied) => {
                (StatusCode::FORBIDDEN, "traffic_token_needed", "Access token needed", no_traffic_message(denied))
            }
            Refusal::SandboxBusy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_requests_in_flight",
                "The sandbox is busy",
                "Too many requests to this sandbox are in flight: try again when some have ended",
            ),
            Refusal::NoMemory => (
                StatusCode::SERVICE_UNAVAILABLE,
                "proxy_memory_exhausted",
                "The sandbox is busy",
                "The host has no memory for more requests to this sandbox now: try again when some have ended",
            ),
            Refusal::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_requests",
                "Too many requests",
                "Too many of your requests to this sandbox are in flight: try again when some have ended",
            ),
            Refusal::Unreachable => (
                StatusCode::BAD_GATEWAY,
                "sandbox_unreachable",
                "The sandbox is not reachable",
                "The sandbox does not accept connections",
            ),
            Refusal::BrokenAnswer => (
                StatusCode::BAD_GATEWAY,
                "broken_answer",
                "No valid response",
                "The sandbox closed the connection without a valid HTTP response",
            ),
            Refusal::TimedOut => (
                StatusCode::GATEWAY_TIMEOUT,
                "timed_out",
                "No response",
                "The sandbox neither read nor sent anything for too long",
            ),
            Refusal::Api(refusal) => api_refused(refusal),
        };
        Words { status, error, title, message }
    }

    fn port(self) -> Option<u16> {
        match self {
            Refusal::PortNotExposed(port) | Refusal::PortClosed(port) => Some(port),
            _ => None,
        }
    }
}

fn not_running(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Creating => "The sandbox is being created",
        SandboxState::Restoring => "The sandbox is being restored",
        SandboxState::Stopping => "The sandbox is stopping",
        SandboxState::Stopped => "The sandbox is paused: resume it first",
        SandboxState::Failed => "The sandbox has failed: its record says why",
        // Both are served; here for completeness of the match.
        SandboxState::Ready | SandboxState::Checkpointing => "The sandbox is not ready",
    }
}

/// To whoever wants something of a team that is disabled.
const ASK_THE_OPERATOR: &str = "The operator of this host has disabled the sandbox's team: ask them to enable it";

fn not_woken(error: WakeError) -> (StatusCode, &'static str, &'static str) {
    let code = "sandbox_not_resumed";
    match error {
        WakeError::NoRoom => (
            StatusCode::SERVICE_UNAVAILABLE,
            code,
            "The sandbox is paused and its host has no room for it now: try again later",
        ),
        WakeError::QuotaExceeded => (
            StatusCode::TOO_MANY_REQUESTS,
            "sandbox_quota_exceeded",
            "The sandbox is paused and its team's quota is full: pause or delete another of the team's sandboxes, then try \
             again",
        ),
        WakeError::TeamDisabled => (StatusCode::FORBIDDEN, TEAM_DISABLED, ASK_THE_OPERATOR),
        WakeError::VolumeTaken => (
            StatusCode::CONFLICT,
            "volume_attached",
            "The sandbox is paused and one of its volumes is in use, as a rule by another sandbox: pause or delete that one, then \
             try again",
        ),
        WakeError::Failed => {
            (StatusCode::SERVICE_UNAVAILABLE, code, "The sandbox is paused and could not be resumed: its logs say why")
        }
        WakeError::TimedOut => {
            (StatusCode::GATEWAY_TIMEOUT, code, "The sandbox is being resumed and was not ready in time: try again")
        }
    }
}

fn api_refused(refusal: ApiRefusal) -> (StatusCode, &'static str, &'static str, &'static str) {
    match refusal {
        ApiRefusal::Down => (
            StatusCode::SERVICE_UNAVAILABLE,
            "api_unreachable",
            "The API is not reachable",
            "The API does not accept connections at the moment: try again",
        ),
        ApiRefusal::BrokenAnswer => (
            StatusCode::BAD_GATEWAY,
            "broken_answer",
            "No valid response",
            "The API closed the connection without a valid HTTP response",
        ),
        ApiRefusal::TimedOut => (
            StatusCode::GATEWAY_TIMEOUT,
            "timed_out",
            "No response",
            "The API neither read nor sent anything for too long",
        ),
        ApiRefusal::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_requests_in_flight",
            "The API is busy",
            "Too many requests to the API are in flight: try again when some have ended",
        ),
        ApiRefusal::NoMemory => (
            StatusCode::SERVICE_UNAVAILABLE,
            "proxy_memory_exhausted",
            "The API is busy",
            "The host has no memory for more requests to the API now: try again when some have ended",
        ),
        ApiRefusal::TooMany => (
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_requests",
            "Too many requests",
            "Too many of your requests to the API are in flight: try again when some have ended",
        ),
    }
}

fn denied_message(denied: Denied) -> &'static str {
    match denied {
        Denied::Missing => {
            "An access token is needed: send the one from the sandbox's session as Authorization: Bearer or X-Access-Token"
        }
        Denied::Wrong(error) => error.message(),
        Denied::WrongSignature => "invalid signature",
        Denied::SignatureExpired => "signature is already expired",
    }
}

fn no_traffic_message(denied: TrafficDenied) -> &'static str {
    match denied {
        TrafficDenied::Missing => {
            "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
        }
        TrafficDenied::Wrong => "Sandbox is secured with traffic access token. Provided token is invalid",
    }
}

/// What the client would rather read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedForm {
    Json,
    Page,
}

impl RequestedForm {
    /// A page where HTML is asked for by name, as browsers do; JSON for everyone else.
    pub(super) fn of(headers: &HeaderMap) -> RequestedForm {
        let html = |value: &HeaderValue| {
            value.to_str().is_ok_and(|value| {
                value.split(',').filter_map(|range| range.split(';').next()).any(|range| {
                    let range = range.trim();
                    range.eq_ignore_ascii_case("text/html") || range.eq_ignore_ascii_case("application/xhtml+xml")
                })
            })
        };
        if headers.get_all(ACCEPT).iter().any(html) { RequestedForm::Page } else { RequestedForm::Json }
    }
}

fn json(words: &Words, sandbox_id: Option<&str>, port: Option<u16>, request_id: &str) -> Bytes {
    let Words { status, error, message, .. } = *words;
    let document = Document { error, message, sandbox_id, port, request_id, code: status.as_u16() };
    // Strings and numbers always serialize.
    serde_json::to_vec(&document).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &'static str) -> RequestedForm {
        RequestedForm::of(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]))
    }

    #[test]
    fn browsers_get_a_page_and_programs_json() {
        assert_eq!(form("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), RequestedForm::Page);
        assert_eq!(form("application/json, Text/HTML;q=0.1"), RequestedForm::Page);
        assert_eq!(form("*/*"), RequestedForm::Json);
        assert_eq!(form("application/json"), RequestedForm::Json);
        assert_eq!(RequestedForm::of(&HeaderMap::new()), RequestedForm::Json);
    }
}
