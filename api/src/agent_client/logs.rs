//! Logs of sandboxes.

use sandpiper_protocol::agent::{LogPage, LogQuery};
use serde_json::Value;
use url::form_urlencoded;

use super::{AgentClient, AgentError};

impl AgentClient {
    /// What the host and the guest noted, as far as `query` selects it.
    ///
    /// # Errors
    ///
    /// Of the call; not found where the host has no log of this sandbox, or none any more.
    pub async fn logs(&self, id: &str, query: &LogQuery) -> Result<LogPage, AgentError> {
        let query = encode(query).map_err(|error| AgentError::Malformed(error.to_string()))?;
        self.ask(&format!("/sandboxes/{id}/logs?{query}")).await
    }
}

/// The fields of a query as parameters of a URL.
fn encode(query: &LogQuery) -> serde_json::Result<String> {
    let mut text = form_urlencoded::Serializer::new(String::new());
    for (name, value) in serde_json::to_value(query)?.as_object().into_iter().flatten() {
        match value {
            Value::String(value) => text.append_pair(name, value),
            value => text.append_pair(name, &value.to_string()),
        };
    }
    Ok(text.finish())
}
