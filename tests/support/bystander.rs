//! Whoever is beside something hostile.

use nix::unistd::Pid;

use crate::host::Host;
use crate::sandbox::Sandbox;

/// A sandbox that has nothing to do with what a test does, and the agent.
pub struct Bystander {
    sandbox: Sandbox,
    agent: Option<Pid>,
}

impl Bystander {
    pub async fn new() -> Self {
        let host = Host::shared();
        Self { sandbox: host.sandbox().await, agent: host.agent_pid() }
    }

    /// Panics unless the host goes on as before.
    pub async fn is_unharmed(&self, what: &str) {
        let host = Host::shared();
        assert_eq!(host.agent_pid(), self.agent, "{what}: another agent runs");
        assert_eq!(self.sandbox.out("echo well").await, "well\n", "{what}");
        host.sandbox().await.delete().await;
    }
}
