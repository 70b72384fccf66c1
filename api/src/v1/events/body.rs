//! An event as it is told: in a page, in a stream, and in a webhook.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::store::events::EventRow;

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub struct EventBody {
    /// From 1 on in each team, one more for each event. Who has read all up to one misses none by asking for what follows it.
    pub sequence: u64,
    /// `sandbox.ready` and others; there will be more.
    #[serde(rename = "type")]
    pub event_type: &'static str,
    pub resource: ResourceBody,
    /// What is told of the resource, by its kind.
    #[schema(value_type = Object)]
    pub data: Value,
    /// When it was written down, which is soon after it happened.
    pub created_at: Timestamp,
}

/// What an event happened to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventResource)]
pub struct ResourceBody {
    /// `sandbox`, `checkpoint`, `build` or `volume`.
    pub kind: &'static str,
    /// A build's is that of the template's version.
    pub id: String,
}

impl From<EventRow> for EventBody {
    fn from(row: EventRow) -> Self {
        let EventRow { sequence, event_type, resource, data, created_at } = row;
        let resource = ResourceBody { kind: event_type.resource_kind().as_str(), id: resource };
        Self { sequence, event_type: event_type.as_str(), resource, data, created_at }
    }
}
