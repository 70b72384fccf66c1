use std::collections::BTreeMap;

use sandpiper::client::{Client, Command, DataPlane, Output, Session};

/// A sandbox that is destroyed when it is dropped.
pub struct Sandbox {
    pub id: String,
    pub session: Session,
    pub data_plane: DataPlane,
    client: Client,
}

impl Sandbox {
    pub(crate) fn new(client: Client, id: String, session: Session) -> Self {
        let data_plane = client.data_plane(&session);
        Self { id, session, data_plane, client }
    }

    /// Runs a shell command as the default user to its end.
    pub async fn sh(&self, script: &str) -> Output {
        self.data_plane.run(&shell(script, None)).await.expect("the command runs")
    }

    /// Runs a shell command as root to its end.
    pub async fn root_sh(&self, script: &str) -> Output {
        self.data_plane.run(&shell(script, Some("root"))).await.expect("the command runs")
    }

    /// Destroys the sandbox, and says when that fails.
    pub async fn delete(self) {
        self.client.delete(&self.id).await.expect("the sandbox is destroyed");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let (client, id) = (self.client.clone(), self.id.clone());
        // A test may be panicking on a runtime that is about to end: a thread with its own does the last call. One that
        // was destroyed already answers 404.
        let thread = std::thread::spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
                let _ = runtime.block_on(client.delete(&id));
            }
        });
        let _ = thread.join();
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
