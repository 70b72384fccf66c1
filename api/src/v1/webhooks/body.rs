//! A webhook in requests and responses.

use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::state::App;
use crate::store::events::EventType;
use crate::store::keys::MAX_NAME;
use crate::store::webhooks::WebhookRow;

/// Where events of a team go.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookBody {
    pub id: String,
    /// What it is for.
    pub name: String,
    pub url: String,
    /// Types of events that go there; empty: all.
    pub types: Vec<&'static str>,
    /// Whether anything is sent.
    pub enabled: bool,
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// `whsec_…`, which signs: in the response to its creation, or to that of another secret, only, and not in a repetition of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl WebhookBody {
    pub(super) fn new(row: WebhookRow, secret: Option<String>) -> Self {
        let WebhookRow { key, name, url, types, enabled, created_at, updated_at } = row;
        let types = types.into_iter().map(EventType::as_str).collect();
        Self { id: key.id.to_string(), name, url, types, enabled, created_at, updated_at, secret }
    }
}

/// A name that it may have.
///
/// # Errors
///
/// 400 otherwise.
pub(super) fn check_name(name: String) -> Result<String, ApiError> {
    if name.len() > MAX_NAME || name.contains(char::is_control) {
        let reason = format!("must have at most {MAX_NAME} bytes, and no control characters");
        return Err(ApiError::invalid_field("name", reason));
    }
    Ok(name)
}

/// The URL as it is stored.
///
/// # Errors
///
/// 400 unless it is a public `https` URL.
pub(super) fn check_url(app: &App, url: &str) -> Result<String, ApiError> {
    let url = app.webhooks.check_url(url);
    let url = url.map_err(|error| ApiError::invalid_field("url", format!("is refused. {error}")))?;
    Ok(url.as_str().to_owned())
}

/// Types of events by their names, each once.
///
/// # Errors
///
/// 400 on a name that no type has.
pub(super) fn check_types(names: &[String]) -> Result<Vec<EventType>, ApiError> {
    let mut types = Vec::new();
    for name in names {
        let Ok(one) = name.parse() else {
            let known: Vec<_> = EventType::ALL.into_iter().map(EventType::as_str).collect();
            let reason = format!("{name:?} is no type of events; there are {}", known.join(", "));
            return Err(ApiError::invalid_field("types", reason));
        };
        if !types.contains(&one) {
            types.push(one);
        }
    }
    Ok(types)
}
