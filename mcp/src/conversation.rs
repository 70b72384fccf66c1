//! The sandboxes of one MCP session.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_client::{
    Client, ClientError, CreateSandbox, DataPlane, Lifecycle, NetworkPolicy, NewCheckpoint, OnTimeout,
};
use tokio::sync::OnceCell;

/// For how long a sandbox that nobody uses goes on; then it is paused.
const IDLE: Duration = Duration::from_secs(600);

/// Sandboxes, and checkpoints, of one conversation.
const MAX_SANDBOXES: usize = 8;
const MAX_CHECKPOINTS: usize = 20;

/// What the person who starts the server decides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What new sandboxes start from.
    pub template: String,
    /// A sandbox to go on with instead of a new one.
    pub sandbox: Option<String>,
    /// What sandboxes may reach. If it is given, the agent cannot change it.
    pub network: Option<NetworkPolicy>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { template: "base".to_owned(), sandbox: None, network: None }
    }
}

/// Why a tool has no result. The text is for the model.
#[derive(Debug)]
pub(crate) struct ToolError(pub(crate) String);

impl From<ClientError> for ToolError {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for ToolError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[derive(Debug, Default)]
struct State {
    /// The sandbox that tools act on; until there is another, the first.
    current: Option<String>,
    /// All that belong to the conversation.
    sandboxes: Vec<String>,
    checkpoints: Vec<String>,
}

/// One conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    settings: Settings,
    /// Calls that come at once make one sandbox.
    first: OnceCell<String>,
    state: Mutex<State>,
}

impl Conversation {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, first: OnceCell::new(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the agent may change what its sandboxes may reach.
    pub(crate) fn may_change_network(&self) -> bool {
        self.settings.network.is_none()
    }

    /// The id of the current sandbox, which is made if there is none yet.
    pub(crate) async fn sandbox(&self, client: &Client) -> Result<String, ToolError> {
        let current = self.state().current.clone();
        if let Some(id) = current {
            return Ok(id);
        }
        let first = self.first.get_or_try_init(async || {
            let id = match &self.settings.sandbox {
                Some(id) => client.show(id).await?.id,
                None => client.create(&self.new_sandbox()).await?.0.id,
            };
            self.state().sandboxes.push(id.clone());
            Ok::<_, ToolError>(id)
        });
        let first = first.await?;
        Ok(self.state().current.get_or_insert_with(|| first.clone()).clone())
    }

    /// The data plane of the current sandbox, which is woken if it sleeps, and then goes on for `busy` and a while.
    pub(crate) async fn data_plane(&self, client: &Client, busy: Duration) -> Result<DataPlane, ToolError> {
        let id = self.sandbox(client).await?;
        let (_, session) = client.resume(&id, Some((IDLE + busy).as_secs())).await?;
        Ok(client.data_plane(&session))
    }

    fn new_sandbox(&self) -> CreateSandbox {
        CreateSandbox {
            template: Some(self.settings.template.clone()),
            timeout: Some(IDLE.as_secs()),
            lifecycle: Some(Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: true, pause_memory: true }),
            metadata: [("made-by".to_owned(), "mcp".to_owned())].into(),
            network: self.settings.network.clone(),
            ..CreateSandbox::default()
        }
    }

    fn check_room(&self) -> Result<(), ToolError> {
        if self.state().sandboxes.len() < MAX_SANDBOXES {
            return Ok(());
        }
        Err(ToolError(format!("A conversation has at most {MAX_SANDBOXES} sandboxes, and this one has as many")))
    }

    /// Takes a checkpoint of the current sandbox, with its processes.
    pub(crate) async fn checkpoint(&self, client: &Client, name: Option<String>) -> Result<String, ToolError> {
        if self.state().checkpoints.len() >= MAX_CHECKPOINTS {
            return Err(ToolError(format!("A conversation has at most {MAX_CHECKPOINTS} checkpoints")));
        }
        let id = self.sandbox(client).await?;
        let checkpoint = client.checkpoint(&id, &NewCheckpoint { name, memory: true }).await?;
        self.state().checkpoints.push(checkpoint.id.clone());
        Ok(checkpoint.id)
    }

    /// Makes a sandbox from a checkpoint of this conversation and goes on in it; the one before is paused. Returns both.
    pub(crate) async fn restore(&self, client: &Client, checkpoint: &str) -> Result<(String, String), ToolError> {
        self.check_room()?;
        if !self.state().checkpoints.iter().any(|taken| taken == checkpoint) {
            return Err("No checkpoint with this id was taken in this conversation".into());
        }
        let before = self.sandbox(client).await?;
        // A return in time is none to what could be reached then.
        let network = client.network(&before).await?.policy;
        let new = CreateSandbox {
            template: None,
            snapshot_id: Some(checkpoint.to_owned()),
            network: Some(network),
            ..self.new_sandbox()
        };
        let (sandbox, _) = client.create(&new).await?;
        {
            let mut state = self.state();
            state.sandboxes.push(sandbox.id.clone());
            state.current = Some(sandbox.id.clone());
        }
        // It pauses at its deadline otherwise.
        let _ = client.pause(&before).await;
        Ok((sandbox.id, before))
    }

    /// Makes a copy of the current sandbox, which stays the current one.
    pub(crate) async fn fork(&self, client: &Client) -> Result<String, ToolError> {
        self.check_room()?;
        let id = self.sandbox(client).await?;
        let mut forks = client.fork(&id, 1).await?;
        let (fork, _) = forks.pop().ok_or("The API responded with no fork")?;
        self.state().sandboxes.push(fork.id.clone());
        Ok(fork.id)
    }

    /// Goes on in another sandbox of this conversation.
    pub(crate) fn switch(&self, id: &str) -> Result<(), ToolError> {
        let mut state = self.state();
        if !state.sandboxes.iter().any(|known| known == id) {
            return Err(ToolError(format!(
                "No such sandbox in this conversation; there are: {}",
                state.sandboxes.join(", ")
            )));
        }
        state.current = Some(id.to_owned());
        Ok(())
    }

    /// Pauses what the conversation made, as far as that succeeds: all of it pauses at its deadline anyway.
    pub(crate) async fn end(&self, client: &Client) {
        let made: Vec<String> = {
            let state = self.state();
            state.sandboxes.iter().filter(|id| Some(*id) != self.settings.sandbox.as_ref()).cloned().collect()
        };
        for id in made {
            let _ = client.pause(&id).await;
        }
    }
}
