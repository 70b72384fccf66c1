//! What a team may hold, whoever has its sandboxes start.

use sandpiper_ingress::{Directory, WakeError};
use sandpiper_protocol::agent::{Allowance, Amounts, ErrorBody, SandboxState};
use sandpiper_protocol::vmm::DiskLimits;

use super::snapshots::Sandbox;
use super::*;

const TEAM: &str = "team0acme";

/// So many sandboxes, with as many CPUs and as much memory as they like.
fn allowance(sandboxes: u32) -> Allowance {
    let quota = Amounts { sandboxes, cpu: 100, memory_mb: 100_000 };
    Allowance { team: TEAM.into(), quota, disk: DiskLimits::default(), network: <_>::default(), disabled: false }
}

/// A create request for a sandbox of the team, which wakes.
fn create_within(allowance: &Allowance, template: &str) -> Value {
    let mut request = create(template);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    request["allowance"] = json!(allowance);
    request
}

impl Agent {
    async fn allow(&self, allowance: &Allowance) {
        let body = json!({"allowances": [allowance]}).to_string();
        assert_eq!(self.ask("PUT", "/allowances", body).await, (204, String::new()));
    }

    fn running(&self) -> usize {
        self.sandboxes.list().iter().filter(|record| record.state == SandboxState::Ready).count()
    }
}

impl Sandbox<'_> {
    async fn wake(&self) -> Result<(), WakeError> {
        self.agent.sandboxes.wake(&self.id).await
    }

    /// The refusal's code.
    async fn refuses(&self, operation: &str, body: Value) -> (u16, String) {
        let (status, body) = self.try_ask(operation, body).await;
        let error: ErrorBody = serde_json::from_value(body).unwrap();
        (status, error.code)
    }
}

fn over_quota() -> (u16, String) {
    (422, "quota_exceeded".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_is_refused_while_the_teams_quota_is_full_and_goes_well_right_after() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (paused, _) = agent.create(create_within(&allowance(1), &template)).await;
    paused.ask("pause", json!({})).await;
    let (other, _) = agent.create(create_within(&allowance(1), &template)).await;

    assert_eq!(paused.wake().await, Err(WakeError::QuotaExceeded));
    assert_eq!(paused.refuses("resume", json!({})).await, over_quota());
    assert_eq!(other.refuses("fork", json!({"ids": [id::generate("sbx")]})).await, over_quota());
    let (status, code, message) =
        agent.error("POST", "/sandboxes", create_within(&allowance(1), &template).to_string()).await;
    assert_eq!((status, code), over_quota());
    assert!(message.contains("quota of 1 sandboxes"), "{message}");
    assert_eq!((paused.state().await.as_str(), other.state().await.as_str()), ("stopped", "ready"));

    other.ask("pause", json!({})).await;
    assert_eq!(paused.wake().await, Ok(()));
    let (unlimited, _) = agent.create(create(&template)).await;
    for sandbox in [paused, other, unlimited] {
        sandbox.delete().await;
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_wakes_and_creates_at_once_no_more_pass_than_there_is_room_for() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (first, _) = agent.create(create_within(&allowance(9), &template)).await;
    let (second, _) = agent.create(create_within(&allowance(9), &template)).await;
    first.ask("pause", json!({})).await;
    second.ask("pause", json!({})).await;
    agent.allow(&allowance(2)).await;

    let request = || create_within(&allowance(2), &template).to_string();
    let created = || async { agent.ask("POST", "/sandboxes", request()).await.0 == 201 };
    let (one, two, three, four) = tokio::join!(first.wake(), created(), second.wake(), created());

    let passed = [one.is_ok(), two, three.is_ok(), four];
    assert_eq!(passed.iter().filter(|passed| **passed).count(), 2, "{passed:?}");
    assert_eq!(agent.running(), 2);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_knows_what_a_team_may_hold_and_counts_what_runs_on() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (running, _) = agent.create(create_within(&allowance(2), &template)).await;
    let (paused, _) = agent.create(create_within(&allowance(2), &template)).await;
    paused.ask("pause", json!({})).await;
    let (running, paused) = (running.id, paused.id);
    agent.allow(&allowance(1)).await;

    let agent = agent.follow().await;

    assert_eq!(agent.sandbox(&running).state().await, "ready");
    assert_eq!(agent.sandbox(&paused).wake().await, Err(WakeError::QuotaExceeded));
    agent.allow(&allowance(2)).await;
    assert_eq!(agent.sandbox(&paused).wake().await, Ok(()));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_quota_ends_nothing_and_lets_nothing_start() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (first, _) = agent.create(create_within(&allowance(2), &template)).await;
    let (second, _) = agent.create(create_within(&allowance(2), &template)).await;

    agent.allow(&allowance(1)).await;

    assert_eq!(agent.running(), 2);
    first.ask("pause", json!({})).await;
    assert_eq!(first.wake().await, Err(WakeError::QuotaExceeded));
    second.delete().await;
    assert_eq!(first.wake().await, Ok(()));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_disabled_team_starts_or_is_reached_also_after_a_restart_and_all_does_when_it_is_enabled() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (paused, _) = agent.create(create_within(&allowance(9), &template)).await;
    paused.ask("pause", json!({})).await;
    let (running, _) = agent.create(create_within(&allowance(9), &template)).await;
    let (unlimited, _) = agent.create(create(&template)).await;
    let others = unlimited.id.clone();
    let disabled = Allowance { disabled: true, ..allowance(9) };
    let is_closed =
        async |agent: &Agent, id: &str| Directory::find(&agent.sandboxes, id).await.expect("there").team_disabled;

    agent.allow(&disabled).await;

    let refusal = || (403, "team_disabled".to_owned());
    assert_eq!(paused.wake().await, Err(WakeError::TeamDisabled));
    assert_eq!(paused.refuses("resume", json!({})).await, refusal());
    assert_eq!(running.refuses("fork", json!({"ids": [id::generate("sbx")]})).await, refusal());
    let (status, code, message) =
        agent.error("POST", "/sandboxes", create_within(&disabled, &template).to_string()).await;
    assert_eq!((status, code), refusal());
    assert!(message.contains("ask them"), "{message}");
    let (running, paused) = (running.id, paused.id);
    assert!(is_closed(&agent, &running).await && is_closed(&agent, &paused).await && !is_closed(&agent, &others).await);

    let agent = agent.follow().await;

    assert!(is_closed(&agent, &running).await);
    agent.sandbox(&running).ask("pause", json!({})).await;
    agent.allow(&allowance(9)).await;
    assert!(!is_closed(&agent, &running).await);
    for id in [&running, &paused] {
        assert_eq!(agent.sandbox(id).wake().await, Ok(()));
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_from_before_teams_is_counted_from_its_next_resume_on() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (old, _) = agent.create(create(&template)).await;
    old.ask("pause", json!({})).await;
    old.ask("resume", json!({"allowance": allowance(1)})).await;

    let request = create_within(&allowance(1), &template).to_string();
    let (status, code, _) = agent.error("POST", "/sandboxes", request).await;

    assert_eq!((status, code), over_quota());
    assert_eq!(old.record()["team"], TEAM);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_start_has_the_disk_limits_of_the_plan_within_those_of_the_host() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let host = Config::default().disk.limits();
    let plan = |flushes| {
        let disk =
            DiskLimits { flushes_per_second: flushes, bytes_per_second: Some(u64::MAX), ..DiskLimits::default() };
        Allowance { disk, ..allowance(9) }
    };
    let given = |sandbox: &Sandbox<'_>| monitor::disk_limits(&sandbox.monitor_folder());

    let (nobodys, _) = agent.create(create(&template)).await;
    let (sandbox, _) = agent.create(create_within(&plan(Some(50)), &template)).await;
    assert_eq!(given(&nobodys), host);
    assert_eq!(given(&sandbox), DiskLimits { flushes_per_second: Some(50), ..host });

    sandbox.ask("pause", json!({})).await;
    agent.allow(&plan(Some(20))).await;
    sandbox.wake().await.unwrap();
    assert_eq!(given(&sandbox), DiskLimits { flushes_per_second: Some(20), ..host });

    let fork = id::generate("sbx");
    sandbox.ask("fork", json!({"ids": [fork]})).await;
    assert_eq!(given(&agent.sandbox(&fork)), DiskLimits { flushes_per_second: Some(20), ..host });
    assert_eq!(agent.sandbox(&fork).record()["team"], TEAM);
    agent.end().await;
}
