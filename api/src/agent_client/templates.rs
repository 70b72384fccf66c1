//! Builds of templates' versions at the agent, and the files that are sent for them; see [`sandpiper_protocol::template`].

use axum::body::Body;
use axum::http::Method;
use sandpiper_protocol::ids::{UploadId, VersionId};
use sandpiper_protocol::template::{Build, BuildList, BuildLogPage, StartBuild, Upload};

use super::{AgentClient, AgentError, CHANGE, DELETE};

impl AgentClient {
    /// Has a version be built, unless its build is there.
    pub async fn start_build(&self, order: &StartBuild) -> Result<Build, AgentError> {
        self.call(Method::POST, "/builds", Some(order), CHANGE).await
    }

    /// Builds that go on, and those that ended within a day.
    pub async fn builds(&self) -> Result<Vec<Build>, AgentError> {
        let list: BuildList = self.ask("/builds").await?;
        Ok(list.builds)
    }

    /// One build.
    pub async fn show_build(&self, id: &VersionId) -> Result<Build, AgentError> {
        self.ask(&format!("/builds/{id}")).await
    }

    /// Entries of a build's log that are numbered above `after`.
    pub async fn build_logs(&self, id: &VersionId, after: u64, limit: usize) -> Result<BuildLogPage, AgentError> {
        self.ask(&format!("/builds/{id}/logs?after={after}&limit={limit}")).await
    }

    /// Ends a build.
    pub async fn cancel_build(&self, id: &VersionId) -> Result<Build, AgentError> {
        self.call::<(), _>(Method::POST, &format!("/builds/{id}/cancel"), None, CHANGE).await
    }

    /// Sends a file, of `length` bytes if that is known; returns when it is on stable storage.
    pub async fn put_upload(&self, id: &UploadId, length: Option<u64>, content: Body) -> Result<Upload, AgentError> {
        let response = self.put_stream(&format!("/uploads/{id}"), length, content).await?;
        super::parse("/uploads", &response)
    }

    /// A file, which counts as used now.
    pub async fn show_upload(&self, id: &UploadId) -> Result<Upload, AgentError> {
        self.ask(&format!("/uploads/{id}")).await
    }

    /// Removes a file; builds that have begun to read it go on.
    pub async fn delete_upload(&self, id: &UploadId) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &format!("/uploads/{id}"), None, DELETE).await.map(drop)
    }

    /// Removes a version; sandboxes and checkpoints that were made from it go on.
    pub async fn delete_template(&self, id: &VersionId) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &format!("/templates/{id}"), None, DELETE).await.map(drop)
    }
}
