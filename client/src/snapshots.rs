//! Pause, resume, forks and checkpoints.

use reqwest::Method;
use sandpiper_protocol::id;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Client, ClientError, Sandbox, Session};

/// A checkpoint to take; `Default` is of the disk alone, named by its id.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NewCheckpoint {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// With the processes as they run.
    pub memory: bool,
}

/// A checkpoint as the API shows it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Checkpoint {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    pub template: String,
    pub memory: bool,
    pub cpu: u32,
    pub memory_mb: u32,
    pub state: String,
    /// Bytes of disk that it holds.
    pub size: u64,
    pub created_at: String,
    #[serde(skip)]
    pub raw: Value,
}

impl Client {
    /// Stops a sandbox and keeps all of it; returns once that is durable.
    pub async fn pause(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.sandbox(self.call(Method::POST, &format!("/sandboxes/{id}/pause"), None).await?)
    }

    /// Brings a stopped sandbox back, or moves the deadline of a live one out: `timeout` seconds from now, or its own.
    pub async fn resume(&self, id: &str, timeout: Option<u64>) -> Result<(Sandbox, Session), ClientError> {
        let path = format!("/sandboxes/{id}/resume");
        let body = timeout.map_or_else(|| json!({}), |timeout| json!({"timeout": timeout}));
        let mut response = self.call(Method::POST, &path, Some(body)).await?;
        let mut part = |name: &str| response.get_mut(name).map(Value::take).unwrap_or_default();
        Ok((self.sandbox(part("sandbox"))?, self.parse(&path, part("session"))?))
    }

    /// Makes `count` new sandboxes that go on from where this one is.
    pub async fn fork(&self, id: &str, count: u32) -> Result<Vec<(Sandbox, Session)>, ClientError> {
        let path = format!("/sandboxes/{id}/fork");
        let mut response = self.call(Method::POST, &path, Some(json!({"count": count}))).await?;
        let sandboxes = response.get_mut("sandboxes").map(Value::take).unwrap_or_default();
        let sandboxes: Vec<Value> = self.parse(&path, sandboxes)?;
        let split = |mut sandbox: Value| {
            let session = sandbox.get_mut("session").map(Value::take).unwrap_or_default();
            Ok((self.sandbox(sandbox)?, self.parse(&path, session)?))
        };
        sandboxes.into_iter().map(split).collect()
    }

    /// Takes a checkpoint of a sandbox; returns once it is durable.
    pub async fn checkpoint(&self, sandbox: &str, new: &NewCheckpoint) -> Result<Checkpoint, ClientError> {
        let path = format!("/sandboxes/{sandbox}/checkpoints");
        let body = serde_json::to_value(new).map_err(|error| self.malformed(&path, &error.to_string()))?;
        self.read_checkpoint(&path, self.call(Method::POST, &path, Some(body)).await?)
    }

    /// All checkpoints of the key's team, or of one sandbox, page after page.
    pub async fn checkpoints(&self, sandbox: Option<&str>) -> Result<Vec<Checkpoint>, ClientError> {
        let path = sandbox.map_or_else(|| "/checkpoints".to_owned(), |id| format!("/sandboxes/{id}/checkpoints"));
        let checkpoints = self.pages(&path, "limit=100", "checkpoints").await?;
        checkpoints.into_iter().map(|value| self.read_checkpoint(&path, value)).collect()
    }

    /// The id of the checkpoint that `reference` names: its id, or its name.
    pub async fn checkpoint_id(&self, reference: &str) -> Result<Option<String>, ClientError> {
        if id::is_valid("ckp", reference) {
            return Ok(Some(reference.to_owned()));
        }
        let named = self.checkpoints(None).await?.into_iter().find(|checkpoint| checkpoint.name == reference);
        Ok(named.map(|checkpoint| checkpoint.id))
    }

    pub async fn delete_checkpoint(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/checkpoints/{id}"), None).await.map(drop)
    }

    fn read_checkpoint(&self, path: &str, raw: Value) -> Result<Checkpoint, ClientError> {
        let checkpoint: Checkpoint = self.parse(path, raw.clone())?;
        Ok(Checkpoint { raw, ..checkpoint })
    }
}
