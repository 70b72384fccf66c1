//! Tools for the machine itself: ports, network, checkpoints, forks.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::conversation::ToolError;
use crate::server::Call;
use crate::text::{cut, lossy};

/// Denied destinations in one result.
const MAX_DENIED: usize = 20;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServePort {
    /// 1 to 65535.
    port: u16,
    /// Whether anybody who knows the URL may open it; otherwise requests need the sandbox's access token.
    #[serde(default)]
    public: bool,
}

impl ServePort {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        if self.port == 0 {
            return Err("A port is a number from 1 to 65535".into());
        }
        let id = call.conversation.sandbox(call.client).await?;
        // Awake, so that it can be said whether something listens.
        call.conversation.data_plane(call.client, std::time::Duration::ZERO).await?;
        let port = call.client.expose(&id, self.port, self.public).await?;
        let listens = match port.status.as_str() {
            "open" => "A server listens there.".to_owned(),
            _ => format!("Nothing listens on port {} yet: start a server.", port.port),
        };
        let access = if port.public { "Anybody who knows it may open it." } else { "Requests need the access token." };
        Ok(format!("{}\n{access} {listens}", port.url))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Network {
    /// Whether what no entry names may be reached.
    allow_internet_access: Option<bool>,
    /// Hosts (api.example.com, *.example.com), addresses and CIDRs that may be reached, each with an optional :port.
    allow_out: Option<Vec<String>>,
    /// The same, for what may not be reached.
    deny_out: Option<Vec<String>>,
}

impl Network {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let id = call.conversation.sandbox(call.client).await?;
        let changes = self.allow_internet_access.is_some() || self.allow_out.is_some() || self.deny_out.is_some();
        let mut network = call.client.network(&id).await?;
        if changes {
            if !call.conversation.may_change_network() {
                return Err("What may be reached was fixed when this server was started; ask who started it".into());
            }
            let mut policy = network.policy;
            policy.allow_internet_access = self.allow_internet_access.unwrap_or(policy.allow_internet_access);
            policy.allow_out = self.allow_out.unwrap_or(policy.allow_out);
            policy.deny_out = self.deny_out.unwrap_or(policy.deny_out);
            network = call.client.replace_network(&id, &policy).await?;
        }
        let denied = call.client.denied(&id).await?;
        let mut text = format!("{}\ndenied so far: {}\n", network.raw, denied.total);
        for denied in denied.denied.iter().take(MAX_DENIED) {
            text.push_str(&format!("{}\n", lossy(json!(denied).to_string().as_bytes())));
        }
        Ok(text)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checkpoint {
    /// A name, to tell it from others.
    name: Option<String>,
}

impl Checkpoint {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let id = call.conversation.checkpoint(call.client, self.name).await?;
        Ok(format!("Checkpoint {id}"))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreCheckpoint {
    /// Its id, as the tool checkpoint gave it.
    checkpoint: String,
}

impl RestoreCheckpoint {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let (now, before) = call.conversation.restore(call.client, &self.checkpoint).await?;
        Ok(format!("You are in {now} now, as {} was. {before} is paused.", cut(&self.checkpoint, 100)))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {}

impl Fork {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let fork = call.conversation.fork(call.client).await?;
        Ok(format!("The fork is {fork}; you are still where you were. Go there with switch_sandbox."))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SwitchSandbox {
    /// The id of the machine, as fork or restore_checkpoint gave it.
    sandbox: String,
}

impl SwitchSandbox {
    pub(super) fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        call.conversation.switch(&self.sandbox)?;
        Ok(format!("You are in {} now.", self.sandbox))
    }
}
