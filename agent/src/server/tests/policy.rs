//! Which network policy a sandbox starts with.

use futures_util::FutureExt;
use sandpiper_ingress::Directory;
use sandpiper_protocol::agent::{Network, NetworkPolicy, SandboxState};

use super::snapshots::{Sandbox, eventually};
use super::*;
use crate::sandbox::Command;

fn waking(template: &str) -> Value {
    let mut request = create(template);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    request
}

fn closed(version: u64) -> Network {
    Network { version, policy: NetworkPolicy { allow_internet_access: false, ..NetworkPolicy::default() } }
}

impl Sandbox<'_> {
    fn policy_version(&self) -> u64 {
        self.agent.sandboxes.find(&self.id).unwrap().network.version
    }

    async fn replace_policy(&self, network: &Network) -> u16 {
        let path = format!("/sandboxes/{}/network", self.id);
        self.agent.ask("PUT", &path, json!(network).to_string()).await.0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_comes_during_a_pause_goes_before_a_wake_that_came_earlier() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(waking(&agent.import().await.id)).await;
    let monitor_folder = sandbox.monitor_folder();
    agent.behave("slow hold-restore");
    let pause = agent.sandboxes.change(&sandbox.id, |answer| Command::Pause { force: false, answer });
    let wake = agent.sandboxes.wake(&sandbox.id);
    let policy = agent.sandboxes.change(&sandbox.id, |answer| Command::SetNetwork(closed(7), answer));
    let (mut pause, mut wake, mut policy) = (Box::pin(pause), Box::pin(wake), Box::pin(policy));

    // In this order.
    assert!((&mut pause).now_or_never().is_none());
    eventually(|| monitor::has_stopped(&monitor_folder)).await;
    assert!((&mut wake).now_or_never().is_none());
    assert!((&mut policy).now_or_never().is_none());
    monitor::go_on(&monitor_folder);

    pause.await.unwrap();
    sandbox.is_eventually(SandboxState::Restoring).await;
    assert_eq!(sandbox.policy_version(), 7, "the machine that starts has it");
    assert_eq!(policy.await.unwrap().network.version, 7);
    agent.behave("");
    assert_eq!(wake.await, Ok(()));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_for_a_paused_sandbox_is_on_record_when_it_is_answered() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(waking(&agent.import().await.id)).await;
    sandbox.ask("pause", json!({})).await;

    assert_eq!(sandbox.replace_policy(&closed(3)).await, 200);

    assert_eq!(sandbox.record()["network"]["version"], 3);
    assert_eq!(agent.sandboxes.wake(&sandbox.id).await, Ok(()));
    assert_eq!(sandbox.policy_version(), 3);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_nothing_enforces_is_not_called_in_force() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(waking(&agent.import().await.id)).await;
    let (id, path, mut record) = (sandbox.id.clone(), sandbox.folder().join("record.json"), sandbox.record());
    record["slot"] = json!(7);

    // A machine whose slot the next agent cannot take over, having no network.
    let agent = agent.follow_after(|| fs::write(path, record.to_string()).unwrap()).await;
    let sandbox = agent.sandbox(&id);

    assert_eq!(sandbox.replace_policy(&closed(3)).await, 500);
    sandbox.ask("pause", json!({})).await;
    assert_eq!(sandbox.replace_policy(&closed(3)).await, 200);
    sandbox.ask("resume", json!({})).await;
    assert_eq!(sandbox.policy_version(), 3);
    agent.end().await;
}
