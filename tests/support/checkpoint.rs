//! One checkpoint of a test.

use sandpiper::client::{self, Client, CreateSandbox};

use crate::sandbox::clean_up;

/// A checkpoint that is deleted when it is dropped.
pub struct Checkpoint {
    pub id: String,
    pub info: client::Checkpoint,
    client: Client,
}

impl Checkpoint {
    pub(crate) fn new(client: Client, info: client::Checkpoint) -> Self {
        Self { id: info.id.clone(), info, client }
    }

    /// Deletes the checkpoint, and says when that fails.
    pub async fn delete(self) {
        self.client.delete_checkpoint(&self.id).await.expect("the checkpoint is deleted");
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        let (client, id) = (self.client.clone(), self.id.clone());
        clean_up(&format!("checkpoint {}", self.id), async move { client.delete_checkpoint(&id).await });
    }
}

/// A sandbox that goes on from a checkpoint, as large as the one that it was taken of.
pub fn from_checkpoint(id: &str) -> CreateSandbox {
    CreateSandbox { template: None, snapshot_id: Some(id.to_owned()), timeout: Some(900), ..CreateSandbox::default() }
}
