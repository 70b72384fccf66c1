//! One volume of a test, and sandboxes that have it. It is asked for over `/v1` itself.

use std::path::Path;

use reqwest::{Body, Method, RequestBuilder, Response};
use sandpiper::client::{self, ClientError, CreateSandbox, VolumeFiles};
use serde_json::{Value, json};

use crate::host::{Host, RUNTIME_DIR, small};
use crate::sandbox::{Sandbox, clean_up};

/// A volume that is deleted when it is dropped.
pub struct Volume<'a> {
    host: &'a Host,
    pub id: String,
    pub name: String,
}

impl Host {
    pub async fn volume(&self, name: &str) -> Volume<'_> {
        let answer = expect(self.api(Method::POST, "/volumes").json(&json!({"name": name}))).await;
        let volume: Value = answer.json().await.expect("a volume");
        Volume { host: self, id: volume["id"].as_str().expect("its id").to_owned(), name: name.to_owned() }
    }

    /// Whether a helper has the volume of this id.
    pub fn has_helper(&self, volume: &str) -> bool {
        Path::new(RUNTIME_DIR).join("helpers").join(volume).exists()
    }

    fn api(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.http().request(method, format!("{}/v1{path}", self.api_url)).bearer_auth(self.api_key())
    }
}

impl Volume<'_> {
    /// What asks for a small sandbox that has the volume at `path`.
    pub fn at(&self, path: &str) -> CreateSandbox {
        CreateSandbox { volume_mounts: [(path.to_owned(), self.name.clone())].into(), ..small() }
    }

    /// Asks for a sandbox that has the volume at `/data`.
    pub async fn try_sandbox(&self) -> Result<Sandbox, ClientError> {
        self.host.try_sandbox(&self.at("/data")).await
    }

    /// A ready sandbox that has the volume at `/data`.
    pub async fn sandbox(&self) -> Sandbox {
        self.try_sandbox().await.unwrap_or_else(|error| panic!("a sandbox with {} starts: {error}", self.name))
    }

    /// The volume as the API shows it.
    pub async fn show(&self) -> client::Volume {
        expect(self.host.api(Method::GET, &self.path(""))).await.json().await.expect("a volume")
    }

    /// Who has it, as the API says.
    pub async fn attached_to(&self) -> Option<String> {
        self.show().await.attached_to
    }

    /// What is in it, for whoever has no sandbox that has it.
    pub fn files(&self) -> VolumeFiles {
        self.host.client.volume_files(&self.id)
    }

    /// Any call about it: `rest` follows its id.
    pub async fn call(&self, method: Method, rest: &str, body: Option<Value>) -> Result<Value, ClientError> {
        self.host.client.call(method, &self.path(rest), body).await
    }

    /// Writes a file without a sandbox.
    pub async fn write(&self, path: &str, content: impl Into<Body>) {
        let request = self.host.api(Method::PUT, &self.path("/files")).query(&[("path", path)]);
        expect(request.header("content-type", "application/octet-stream").body(content)).await;
    }

    /// Reads a file without a sandbox.
    pub async fn read(&self, path: &str) -> Response {
        expect(self.host.api(Method::GET, &self.path("/files")).query(&[("path", path)])).await
    }

    /// Deletes it, and says when that fails.
    pub async fn delete(self) {
        expect(self.host.api(Method::DELETE, &self.path(""))).await;
    }

    fn path(&self, rest: &str) -> String {
        format!("/volumes/{}{rest}", self.id)
    }
}

impl Drop for Volume<'_> {
    fn drop(&mut self) {
        let (client, id) = (self.host.client.clone(), self.id.clone());
        clean_up(&format!("volume {}", self.name), async move { client.delete_volume(&id).await });
    }
}

async fn expect(request: RequestBuilder) -> Response {
    let response = request.send().await.expect("an answer");
    let status = response.status();
    if status.is_success() {
        return response;
    }
    panic!("{status}: {}", response.text().await.unwrap_or_default());
}
