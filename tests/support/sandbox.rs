//! One sandbox of a test.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandpiper::client::{self, Client, ClientError, Command, CreateSandbox, DataPlane, NewCheckpoint, Output, Session};

use crate::checkpoint::Checkpoint;
use crate::host::RUNTIME_DIR;

/// A sandbox that is destroyed when it is dropped.
pub struct Sandbox {
    pub id: String,
    /// Of the last start.
    pub session: Session,
    pub data_plane: DataPlane,
    client: Client,
}

impl Sandbox {
    pub async fn create(client: &Client, request: &CreateSandbox) -> Result<Self, ClientError> {
        let created = client.create(request).await;
        if let Err(ClientError::NotStarted { id, .. }) = &created {
            client.delete(id).await.expect("what did not start is destroyed");
        }
        let (sandbox, session) = created?;
        Ok(Self::new(client.clone(), sandbox.id, session))
    }

    pub(crate) fn new(client: Client, id: String, session: Session) -> Self {
        let data_plane = client.data_plane(&session);
        Self { id, session, data_plane, client }
    }

    /// The Unix socket of its monitor that leads to its ports of vsock, on the shared host.
    pub fn vsock_socket(&self) -> PathBuf {
        [RUNTIME_DIR, "sandboxes", &self.id, "vsock.sock"].iter().collect()
    }

    /// Runs a shell command as the default user to its end.
    pub async fn sh(&self, script: &str) -> Output {
        self.run(script, None).await
    }

    /// Runs a shell command as root to its end.
    pub async fn root_sh(&self, script: &str) -> Output {
        self.run(script, Some("root")).await
    }

    /// What a shell command of the default user prints, which must succeed.
    pub async fn out(&self, script: &str) -> String {
        let output = self.sh(script).await;
        assert_eq!(output.end.exit_code, 0, "{script:?} in {}: {}", self.id, text(&output.stderr));
        text(&output.stdout)
    }

    /// Stops it and keeps all of it.
    pub async fn pause(&self) -> Result<client::Sandbox, ClientError> {
        self.client.pause(&self.id).await
    }

    /// Brings it back, or moves its deadline out, as long as it had at first or for `timeout` seconds. Its session is a
    /// new one then.
    pub async fn resume(&mut self, timeout: Option<u64>) -> Result<client::Sandbox, ClientError> {
        let (resumed, session) = self.client.resume(&self.id, timeout).await?;
        self.data_plane = self.client.data_plane(&session);
        self.session = session;
        Ok(resumed)
    }

    /// Pauses it and brings it back.
    pub async fn pause_and_resume(&mut self) {
        self.pause().await.unwrap_or_else(|error| panic!("{} is paused: {error}", self.id));
        self.resume(None).await.unwrap_or_else(|error| panic!("{} is resumed: {error}", self.id));
    }

    /// Makes `count` sandboxes that go on from where this one is.
    pub async fn fork(&self, count: u32) -> Result<Vec<Self>, ClientError> {
        let forks = self.client.fork(&self.id, count).await?;
        Ok(forks.into_iter().map(|(fork, session)| Self::new(self.client.clone(), fork.id, session)).collect())
    }

    /// Keeps it as it is, with its processes if `memory` says so.
    pub async fn checkpoint(&self, memory: bool) -> Result<Checkpoint, ClientError> {
        self.checkpoint_as(&NewCheckpoint { name: None, memory }).await
    }

    pub async fn checkpoint_as(&self, new: &NewCheckpoint) -> Result<Checkpoint, ClientError> {
        let info = self.client.checkpoint(&self.id, new).await?;
        Ok(Checkpoint::new(self.client.clone(), info))
    }

    /// Destroys the sandbox, and says when that fails.
    pub async fn delete(self) {
        self.client.delete(&self.id).await.expect("the sandbox is destroyed");
    }

    async fn run(&self, script: &str, user: Option<&str>) -> Output {
        let ran = self.data_plane.run(&shell(script, user)).await;
        ran.unwrap_or_else(|error| panic!("{script:?} runs in {}: {error}", self.id))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let (client, id) = (self.client.clone(), self.id.clone());
        clean_up(&format!("sandbox {}", self.id), async move { client.delete(&id).await });
    }
}

/// Deletes `what` from a destructor, and fails the test when that fails; one that is gone already answers 404. A test
/// may be panicking on a runtime that is about to end: a thread with its own does it.
pub(crate) fn clean_up(what: &str, delete: impl Future<Output = Result<(), ClientError>> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(delete)
    });
    let failure = match thread.join() {
        Ok(Ok(())) => return,
        Ok(Err(error)) if error.status() == Some(404) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the call panicked".to_owned(),
    };
    // A panic on top of another one would end the process.
    if std::thread::panicking() {
        eprintln!("{what} could not be deleted: {failure}");
    } else {
        panic!("{what} could not be deleted: {failure}");
    }
}

/// A command line for the guest's shell.
pub fn shell(script: &str, user: Option<&str>) -> Command {
    Command {
        program: "/bin/bash".into(),
        arguments: vec!["-c".into(), script.into()],
        envs: BTreeMap::new(),
        user: user.map(str::to_owned),
        ..Command::default()
    }
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
