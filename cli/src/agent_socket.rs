//! The agent of this machine, over its Unix socket: for the operator, who is root here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use sandpiper_protocol::agent::ErrorBody;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Where the agent of this machine listens, unless told otherwise.
pub(crate) const PATH: &str = "/run/sandpiper/agent.sock";

pub(crate) struct AgentSocket {
    path: PathBuf,
}

impl AgentSocket {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(|http, base| http.get(format!("{base}{path}"))).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.call(|http, base| http.post(format!("{base}{path}")).json(body)).await
    }

    /// Whether the agent responds.
    pub(crate) async fn is_up(&self) -> bool {
        let http =
            reqwest::Client::builder().unix_socket(self.path.as_path()).no_proxy().timeout(Duration::from_secs(5));
        let Ok(http) = http.build() else { return false };
        http.get("http://agent/healthz").send().await.is_ok_and(|response| response.status().is_success())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        request: impl FnOnce(&reqwest::Client, &str) -> reqwest::RequestBuilder,
    ) -> anyhow::Result<T> {
        let http = reqwest::Client::builder()
            .unix_socket(self.path.as_path())
            .no_proxy()
            .timeout(Duration::from_secs(900))
            .build()?;
        let response = request(&http, "http://agent").send().await.with_context(|| {
            format!(
                "Cannot reach the agent at {}: start it (`sandpiper up`, or sandpiper-agent.service), and run this as root",
                self.path.display()
            )
        })?;
        let status = response.status();
        let bytes = response.bytes().await?;
        if !status.is_success() {
            match serde_json::from_slice::<ErrorBody>(&bytes) {
                Ok(error) => bail!("{} [{}]", error.message, error.code),
                Err(_) => bail!("The agent responded with {status}"),
            }
        }
        serde_json::from_slice(&bytes)
            .context("The agent's response is not what this version of the client understands")
    }
}
