//! What teams may hold at the agent, which obeys it where the API is not asked.

use sandpiper_api::orchestration::sync::Synchronizer;
use sandpiper_api::plan::{DiskRates, NetworkRates, Plan, Quota};
use sandpiper_protocol::agent::{Allowance, PlanSizes, SandboxState};
use sandpiper_protocol::vmm::{DiskLimits, NetLimits};
use serde_json::json;

use crate::support::Host;
use crate::support::agent::RETAINED;

/// The allowances that the agent has been told since it was last asked here.
fn told(host: &Host) -> Vec<Allowance> {
    std::mem::take(&mut host.agent.records().allowances)
}

async fn become_basic(host: &Host) {
    let statement = "UPDATE teams SET plan = 'basic' WHERE slug = 'acme'";
    host.alter(statement, statement).await;
}

#[tokio::test]
async fn every_start_tells_the_agent_what_the_plan_of_its_team_says() {
    let host = Host::with(|config| {
        config.plans.pro.quota = Quota { sandboxes: 5, cpu: 6, memory_mb: 7000, ..Quota::default() };
        config.plans.pro.disk = DiskRates { bandwidth: 0, operations: 9, flushes: 10 };
        config.plans.pro.network = NetworkRates { bandwidth: 11, packets: 0 };
    })
    .await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.post(&format!("{path}/pause"), json!({})).await.expect(200);
    host.post(&format!("{path}/resume"), json!({})).await.expect(200);
    host.post(&format!("{path}/fork"), json!({})).await.expect(201);

    let told = told(&host);

    let acme = host.app.store.teams.by_slug("acme").await.unwrap().unwrap();
    let quota = Quota { sandboxes: 5, cpu: 6, memory_mb: 7000, ..Quota::default() }.amounts();
    let disk = DiskLimits { bytes_per_second: None, operations_per_second: Some(9), flushes_per_second: Some(10) };
    let network = NetLimits { bytes_per_second: Some(11), packets_per_second: None };
    assert_eq!(told, vec![Allowance { team: acme.id, quota, disk, network, disabled: false }; 3]);
}

#[tokio::test]
async fn the_agent_is_told_of_a_changed_plan_until_it_knows() {
    let mut host = Host::new().await;
    host.sandbox().await;
    let mut synchronizer = Synchronizer::new(host.app.clone());
    synchronizer.round().await.unwrap();
    told(&host);
    synchronizer.round().await.unwrap();
    assert_eq!(told(&host), [], "nothing has changed");
    become_basic(&host).await;

    host.agent.stop();
    synchronizer.round().await.unwrap_err();
    host.agent.resume();
    synchronizer.round().await.unwrap();

    let quotas: Vec<_> = told(&host).into_iter().map(|allowance| allowance.quota).collect();
    assert_eq!(quotas, [host.app.offer.of(Plan::Basic).quota.amounts()], "the team without sandboxes is left out");
    for _ in 0..30 {
        synchronizer.round().await.unwrap();
    }
    assert_eq!(told(&host).len(), 1, "again, should an older one have come in since");
}

#[tokio::test]
async fn the_agent_is_told_in_which_sizes_sandboxes_come_and_again_should_it_be_another() {
    let host = Host::with(|config| config.plans.enterprise.root_disk_gib = 40).await;
    let mut synchronizer = Synchronizer::new(host.app.clone());
    for _ in 0..31 {
        synchronizer.round().await.unwrap();
    }
    let sizes = PlanSizes { root_disks_gib: vec![10, 20, 40] };
    assert_eq!(host.agent.records().plan_sizes, [sizes.clone(), sizes]);
}

#[tokio::test]
async fn what_the_agent_finds_over_the_quota_is_refused_as_here_and_shows_what_woke() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    let woken = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{woken}/pause"), json!({})).await.expect(200);
    let stopped = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{stopped}/pause"), json!({})).await.expect(200);
    host.agent.turn(&woken, SandboxState::Ready);
    host.agent.records().refuse = Some((422, "quota_exceeded"));

    let refused = host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded");

    let usage = json!({
        "sandboxes": 1, "cpu": 1, "memory_mb": 256, "stopped": 1, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
        "checkpoints": 0, "retained_bytes": 2 * RETAINED,
    });
    assert_eq!(refused["quota"]["usage"], usage);
    assert_eq!(refused["quota"]["limits"]["sandboxes"], 1);
    assert_eq!(
        refused["quota"]["reservation"],
        json!({"sandboxes": 1, "cpu": 1, "memory_mb": 256, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_resume_and_a_fork_that_the_agent_finds_over_the_quota_leave_all_as_it_was() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.agent.records().refuse = Some((422, "quota_exceeded"));
    let fork = host.post(&format!("{path}/fork"), json!({"count": 2})).await.refused(422, "sandbox_quota_exceeded");
    host.agent.records().refuse = None;
    host.post(&format!("{path}/pause"), json!({})).await.expect(200);
    host.agent.records().refuse = Some((422, "quota_exceeded"));
    let resume = host.post(&format!("{path}/resume"), json!({})).await.refused(422, "sandbox_quota_exceeded");

    assert_eq!(
        fork["quota"]["reservation"],
        json!({"sandboxes": 2, "cpu": 2, "memory_mb": 512, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    assert_eq!(
        resume["quota"]["reservation"],
        json!({"sandboxes": 1, "cpu": 1, "memory_mb": 256, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    let list = host.get("/v1/sandboxes").await.expect(200);
    assert_eq!(list["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(list["sandboxes"][0]["state"], "stopped");
}

#[tokio::test]
async fn what_woke_while_the_api_was_away_counts_when_it_is_back() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    let id = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    assert_eq!(host.usage().await["sandboxes"], 0);

    host.agent.turn(&id, SandboxState::Ready);
    let host = host.restart().await;
    host.sync().await;

    assert_eq!(host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"], "ready");
    assert_eq!(host.usage().await["sandboxes"], 1);
    host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded");
}

#[tokio::test]
async fn the_catalog_shows_how_fast_a_sandbox_of_each_plan_may_be() {
    let host = Host::new().await;
    let plans = host.get("/v1/sandbox_limits").await.expect(200)["plans"].take();
    assert_eq!(plans[0]["disk"], json!({"bandwidth": 268_435_456, "operations": 10_000, "flushes": 100}));
    assert_eq!(plans[0]["network"], json!({"bandwidth": 134_217_728, "packets": 100_000}));
    assert_eq!(plans[2]["disk"], json!({"bandwidth": 0, "operations": 0, "flushes": 0}), "as the host gives");
}
