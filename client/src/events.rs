//! What happened in a team, and what happens.

use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::Value;

use super::event_stream::EventStream;
use super::{Client, ClientError};

/// Something that happened; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// From 1 on in each team, one more for each event.
    pub sequence: u64,
    /// `sandbox.ready` and others.
    #[serde(rename = "type")]
    pub event_type: String,
    pub resource: EventResource,
    pub created_at: String,
    #[serde(skip)]
    pub raw: Value,
}

/// What an event happened to.
#[derive(Debug, Clone, Deserialize)]
pub struct EventResource {
    /// `sandbox`, `checkpoint`, `build` or `volume`.
    pub kind: String,
    pub id: String,
}

/// Which events are looked for; `Default` is all.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Any of these types; empty: any.
    pub types: Vec<String>,
    /// Of the resource with this id.
    pub resource: Option<String>,
}

impl EventFilter {
    /// The path of these events, with more parameters.
    fn path(&self, more: &[(&str, &str)]) -> String {
        let types = self.types.iter().map(|one| ("type", one.as_str()));
        let resource = self.resource.iter().map(|id| ("resource", id.as_str()));
        let pairs = types.chain(resource).chain(more.iter().copied());
        let url = Url::parse_with_params("http://localhost/", pairs);
        let query = url.ok().and_then(|url| url.query().map(str::to_owned)).filter(|query| !query.is_empty());
        match query {
            Some(query) => format!("/events?{query}"),
            None => "/events".to_owned(),
        }
    }
}

#[derive(Deserialize)]
struct Page {
    events: Vec<Value>,
    next_after: u64,
    has_more: bool,
}

/// Events as they happen. A connection that breaks off is made anew, and no event is missed or comes twice.
pub struct Events(EventStream);

impl Client {
    /// The events that follow the one of this number, up to now, oldest first; from the oldest that is kept with 0.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached. `events_expired`: what follows is not kept any more.
    pub async fn events(&self, filter: &EventFilter, mut after: u64) -> Result<Vec<Event>, ClientError> {
        let mut all = Vec::new();
        loop {
            let from = after.to_string();
            let path = filter.path(&[("after", &from), ("limit", "100")]);
            let page = self.call(Method::GET, &path, None).await?;
            let page: Page = self.parse(&path, page)?;
            for event in page.events {
                all.push(self.event(event)?);
            }
            after = page.next_after;
            if !page.has_more {
                return Ok(all);
            }
        }
    }

    /// The events from now on, or those that follow the one of this number, as they happen.
    pub fn follow_events(&self, filter: &EventFilter, after: Option<u64>) -> Events {
        let last = after.map(|after| after.to_string());
        Events(EventStream::new(self, filter.path(&[]), last))
    }

    fn event(&self, raw: Value) -> Result<Event, ClientError> {
        let event: Event = self.parse("/events", raw.clone())?;
        Ok(Event { raw, ..event })
    }
}

impl Events {
    /// The next event; waits for one.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached for long.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        let event = self.0.next().await?;
        let raw: Value = self.0.parse(&event)?;
        let event: Event = self.0.parse(&event)?;
        Ok(Event { raw, ..event })
    }
}
