//! What the proxy answers itself: JSON for programs, a small page for people.

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue,
    RETRY_AFTER, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use sandpiper_protocol::agent::SandboxState;
use serde::Serialize;

use super::WakeError;
use super::body::Body;
use super::credentials::Denied;
use super::stats::Outcome;

/// Why a request does not reach a guest, or its answer not the client.
///
/// 502 and the wording of "not found" and "port is not open" are what the E2B SDKs expect of a proxy: that is how they
/// tell a sandbox that is gone from an application that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request contradicts itself or HTTP; the text says how.
    Invalid(&'static str),
    /// `CONNECT`: this is no forward proxy.
    ConnectMethod,
    UnknownHost,
    SandboxNotFound,
    NotRunning(SandboxState),
    /// It is paused, and could not be resumed for this request.
    NotWoken(WakeError),
    PortNotExposed(u16),
    PortClosed(u16),
    Unauthorized(Denied),
    /// Too many requests of this sandbox are in flight.
    Busy,
    /// The monitor or the guest accepts no connection.
    Unreachable,
    /// The guest closed the connection before it had answered, or answered something that is not HTTP.
    BrokenAnswer,
    /// Nothing moved for the whole idle time.
    TimedOut,
}

/// The JSON body. The E2B SDKs read `message` and `code`, our own clients `error`.
#[derive(Serialize)]
struct Document {
    error: &'static str,
    message: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

impl Refusal {
    /// The answer to a request whose header fields were `asked`.
    pub(super) fn response(self, asked: &RequestedForm) -> Response<Body> {
        let (status, error, message) = self.description();
        let (content_type, body) = match asked {
            RequestedForm::Page => ("text/html; charset=utf-8", page(status, message, self.port())),
            RequestedForm::Json => ("application/json", json(status, error, message, self.port())),
        };
        let mut response = Response::new(Body::small(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(VARY, HeaderValue::from_static("accept"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers
            .insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"));
        // A program in a browser may read why it was refused; nothing here is secret.
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        match self {
            Refusal::Unauthorized(Denied::Missing) => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="sandpiper""#));
            }
            Refusal::Unauthorized(Denied::Wrong(_)) => {
                let challenge = r#"Bearer realm="sandpiper", error="invalid_token""#;
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            Refusal::Busy => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Refusal::NotWoken(WakeError::NoRoom) => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
            }
            _ => {}
        }
        response
    }

    /// How it is counted.
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Refusal::Invalid(_) | Refusal::ConnectMethod => Outcome::Invalid,
            Refusal::UnknownHost | Refusal::SandboxNotFound | Refusal::PortNotExposed(_) => Outcome::NotFound,
            Refusal::Unauthorized(_) => Outcome::Unauthorized,
            Refusal::Busy => Outcome::Limited,
            Refusal::NotRunning(_)
            | Refusal::NotWoken(_)
            | Refusal::PortClosed(_)
            | Refusal::Unreachable
            | Refusal::BrokenAnswer
            | Refusal::TimedOut => Outcome::Unavailable,
        }
    }

    fn description(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Refusal::Invalid(message) => (StatusCode::BAD_REQUEST, "invalid_request", message),
            Refusal::ConnectMethod => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "CONNECT is not served here: ask the sandbox's own host name",
            ),
            Refusal::UnknownHost => (
                StatusCode::NOT_FOUND,
                "unknown_host",
                "No sandbox has this host name: use the data-plane or preview URL that the API gave",
            ),
            Refusal::SandboxNotFound => (StatusCode::BAD_GATEWAY, "sandbox_not_found", "The sandbox was not found"),
            Refusal::NotRunning(state) => (StatusCode::BAD_GATEWAY, "sandbox_not_running", not_running(state)),
            Refusal::NotWoken(error) => {
                let (status, message) = not_woken(error);
                (status, "sandbox_not_resumed", message)
            }
            Refusal::PortNotExposed(_) => {
                (StatusCode::NOT_FOUND, "port_not_exposed", "The sandbox does not expose this port: expose it first")
            }
            Refusal::PortClosed(_) => {
                (StatusCode::BAD_GATEWAY, "port_closed", "The sandbox is running but port is not open")
            }
            Refusal::Unauthorized(denied) => (StatusCode::UNAUTHORIZED, "unauthorized", denied_message(denied)),
            Refusal::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_requests_in_flight",
                "Too many requests to this sandbox are in flight: try again when some have ended",
            ),
            Refusal::Unreachable => {
                (StatusCode::BAD_GATEWAY, "sandbox_unreachable", "The sandbox does not accept connections")
            }
            Refusal::BrokenAnswer => (
                StatusCode::BAD_GATEWAY,
                "broken_answer",
                "The sandbox closed the connection without a valid HTTP answer",
            ),
            Refusal::TimedOut => {
                (StatusCode::GATEWAY_TIMEOUT, "timed_out", "The sandbox neither read nor sent anything for too long")
            }
        }
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

fn not_woken(error: WakeError) -> (StatusCode, &'static str) {
    match error {
        WakeError::NoRoom => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The sandbox is paused and its host has no room for it now: try again later",
        ),
        WakeError::Failed => {
            (StatusCode::SERVICE_UNAVAILABLE, "The sandbox is paused and could not be resumed: its logs say why")
        }
        WakeError::TimedOut => {
            (StatusCode::GATEWAY_TIMEOUT, "The sandbox is being resumed and was not ready in time: try again")
        }
    }
}

fn denied_message(denied: Denied) -> &'static str {
    match denied {
        Denied::Missing => {
            "An access token is needed: send the one from the sandbox's session as Authorization: Bearer or X-Access-Token"
        }
        Denied::Wrong(error) => error.message(),
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

fn json(status: StatusCode, error: &'static str, message: &'static str, port: Option<u16>) -> Bytes {
    let document = Document { error, message, port, code: status.as_u16() };
    // Strings and numbers always serialize.
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// Self-contained: no script, no font, nothing loaded. All inserted texts are constants of this file, or numbers.
fn page(status: StatusCode, message: &str, port: Option<u16>) -> Bytes {
    let port = port.map(|port| format!("<p class=\"port\">Port {port}</p>")).unwrap_or_default();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n\
         :root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}\n\
         body {{ min-height: 90vh; display: grid; place-content: center; text-align: center; padding: 0 1.5rem; }}\n\
         h1 {{ font-size: 1.25rem; max-width: 34rem; }}\n.port, footer {{ opacity: .65; }}\n</style>\n\
         <main>\n<h1>{message}</h1>\n{port}\n<footer>{title} · Sandpiper</footer>\n</main>\n</html>\n",
        title = status,
    )
    .into()
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
