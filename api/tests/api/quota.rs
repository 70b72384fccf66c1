//! The quota holds whatever happens at once.

use sandpiper_api::plan::Quota;
use serde_json::json;

use crate::support::agent::RETAINED;
use crate::support::{Host, request};

#[tokio::test]
async fn no_more_cpus_are_offered_than_the_agent_gives() {
    let host = Host::new().await;
    host.agent.records().vcpus_max = 4;
    let values = async || host.get("/v1/sandbox_limits").await.expect(200)["cpu_values"].take();
    assert_eq!(values().await, json!([1, 2, 4, 8]), "nobody has asked the agent yet");

    host.sync().await;

    assert_eq!(values().await, json!([1, 2, 4]));
    host.create(json!({"template": "base", "cpu": 8})).await.blames("cpu");
    host.create(json!({"template": "base", "cpu": 4})).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_creates_never_pass_the_quota() {
    let host = Host::with(|config| {
        config.plans.pro.quota = Quota { sandboxes: 5, cpu: 100, memory_mb: 100_000, ..Quota::default() }
    })
    .await;
    host.sync().await;

    let create = |_| request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"})));
    let answers = host.at_once((0..24).map(create)).await;
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();

    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 5, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 422).count(), 19, "{statuses:?}");
    assert_eq!(host.agent.records().sandboxes.len(), 5);
}

#[tokio::test]
async fn a_refusal_shows_the_quota_as_the_limits_do() {
    let host = Host::with(|config| {
        config.plans.pro.quota = Quota { sandboxes: 9, cpu: 3, memory_mb: 4096, ..Quota::default() }
    })
    .await;
    host.create(json!({"template": "base", "cpu": 2, "memory_mb": 1024})).await.expect(201);

    let body = host
        .create(json!({"template": "base", "cpu": 2, "memory_mb": 512}))
        .await
        .refused(422, "sandbox_quota_exceeded");

    let limits = host.get("/v1/sandbox_limits").await.expect(200);
    assert_eq!(
        body["quota"]["limits"],
        json!({"sandboxes": 9, "cpu": 3, "memory_mb": 4096, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    let usage = json!({
        "sandboxes": 1, "cpu": 2, "memory_mb": 1024, "stopped": 0, "volumes": 0, "volume_gib": 0, "templates": 0,
        "build_minutes": 0, "webhooks": 0,
        "checkpoints": 0, "retained_bytes": RETAINED,
    });
    assert_eq!(body["quota"]["usage"], usage);
    assert_eq!(
        body["quota"]["reservation"],
        json!({"sandboxes": 1, "cpu": 2, "memory_mb": 512, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    assert_eq!(limits["quota"]["limits"], body["quota"]["limits"]);
    assert_eq!(limits["quota"]["usage"], body["quota"]["usage"]);
    host.create(json!({"template": "base", "cpu": 1})).await.expect(201);
}

#[tokio::test]
async fn memory_is_counted_too_and_a_delete_frees_it() {
    let host = Host::with(|config| {
        config.plans.pro.quota = Quota { sandboxes: 9, cpu: 9, memory_mb: 1024, ..Quota::default() }
    })
    .await;
    let first = host.create(json!({"template": "base", "memory_mb": 1024})).await.expect(201);
    host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded");

    let path = format!("/v1/sandboxes/{}", first["id"].as_str().unwrap());
    host.call("DELETE", &path, &host.write, None).await.expect(204);

    host.create(json!({"template": "base"})).await.expect(201);
}

#[tokio::test]
async fn a_failed_sandbox_frees_its_quota_and_stays_visible() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    let id = host.sandbox().await;
    host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded");

    host.agent.fail(&id);
    host.sync().await;

    host.create(json!({"template": "base"})).await.expect(201);
    let failed = host.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    assert_eq!(failed["state"], "failed");
    assert_eq!(failed["error"], json!({"code": "guest_panicked", "message": "The kernel panicked"}));
}

#[tokio::test]
async fn limits_show_plan_catalog_and_prices() {
    let host = Host::new().await;
    let limits = host.get("/v1/sandbox_limits").await.expect(200);
    assert_eq!((&limits["cpu"], &limits["memory_mb"], &limits["plan"]), (&json!(1), &json!(512), &json!("pro")));
    assert_eq!(limits["cpu_values"], json!([1, 2, 4, 8]));
    assert_eq!(limits["root_disk_gib"], 20);
    assert_eq!(limits["max_timeout"], 86_400);
    let free = json!({"currency": "USD", "vcpu_second": "0", "memory_gib_second": "0", "storage_gib_hour": "0",
                      "egress_gib": "0", "ingress_gib": "0"});
    assert_eq!(limits["prices"], free);
    let plans: Vec<_> = limits["plans"].as_array().unwrap().iter().map(|plan| plan["name"].as_str()).collect();
    assert_eq!(plans, [Some("basic"), Some("pro"), Some("enterprise")]);
    assert_eq!(limits["plans"][0]["root_disk_gib"], 10);
    assert_eq!(limits["plans"][0]["overrides"], false);
}
