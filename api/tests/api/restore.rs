//! `POST /v1/sandboxes` from a checkpoint.

use sandpiper_api::plan::Quota;
use serde_json::{Value, json};

use crate::support::Host;
use crate::support::agent::VERSIONS;

/// The id of a checkpoint of a sandbox with 2 CPUs and 512 MiB, from the older version of the template.
async fn checkpoint(host: &Host, memory: bool) -> String {
    let body = json!({"template": "base:1", "cpu": 2, "memory_mb": 512, "metadata": {"a": "1"}, "envs": {"A": "1"}});
    let sandbox = host.create(body).await.expect(201);
    let taken = host.checkpoint(sandbox["id"].as_str().unwrap(), json!({"memory": memory})).await;
    taken["id"].as_str().unwrap().to_owned()
}

fn size(sandbox: &Value) -> (u64, u64) {
    (sandbox["cpu"].as_u64().unwrap(), sandbox["memory_mb"].as_u64().unwrap())
}

#[tokio::test]
async fn a_sandbox_starts_from_a_snapshot_named_either_way() {
    let host = Host::new().await;
    let snapshot = checkpoint(&host, true).await;
    for body in [json!({"snapshot_id": snapshot}), json!({"template": snapshot})] {
        let sandbox = host.create(body).await.expect(201);
        assert_eq!(sandbox["snapshot_id"], snapshot.as_str());
        assert_eq!((&sandbox["template"], &sandbox["template_version"]), (&json!("base"), &json!(VERSIONS[0])));
        assert_eq!((&sandbox["timeout"], &sandbox["metadata"]), (&json!(300), &json!({})));
        assert_eq!(size(&sandbox), (2, 512));
        let order = host.agent.records().orders.last().unwrap().clone();
        assert_eq!(order.checkpoint, Some(snapshot.as_str().into()));
        assert!(order.envs.is_empty());
    }
    let plain = host.create(json!({"template": "base"})).await.expect(201);
    assert!(plain.get("snapshot_id").is_none());
}

#[tokio::test]
async fn one_with_memory_keeps_its_size() {
    let host = Host::new().await;
    let snapshot = checkpoint(&host, true).await;
    for (field, value) in [("cpu", 4), ("memory_mb", 1024)] {
        host.create(json!({"snapshot_id": snapshot, field: value})).await.blames(field);
    }
    let same = host.create(json!({"snapshot_id": snapshot, "cpu": 2, "memory_mb": 512})).await.expect(201);
    assert_eq!(size(&same), (2, 512));
}

#[tokio::test]
async fn one_of_the_disk_alone_may_get_another_size_as_the_plan_allows() {
    let host = Host::new().await;
    let snapshot = checkpoint(&host, false).await;
    assert_eq!(size(&host.create(json!({"snapshot_id": snapshot})).await.expect(201)), (2, 512));
    assert_eq!(size(&host.create(json!({"snapshot_id": snapshot, "cpu": 4})).await.expect(201)), (4, 512));
    host.create(json!({"snapshot_id": snapshot, "cpu": 3})).await.blames("cpu");
}

#[tokio::test]
async fn the_disk_is_never_smaller_than_the_checkpoints() {
    let host = Host::new().await;
    let snapshot = checkpoint(&host, false).await;
    host.agent.records().checkpoints.get_mut(&snapshot).unwrap().disk_gib = 40;
    host.sync().await;
    assert_eq!(host.create(json!({"snapshot_id": snapshot})).await.expect(201)["disk_gib"], 40);
    host.agent.records().checkpoints.get_mut(&snapshot).unwrap().disk_gib = 5;
    host.sync().await;
    assert_eq!(host.create(json!({"snapshot_id": snapshot})).await.expect(201)["disk_gib"], 20);
}

#[tokio::test]
async fn the_quota_counts_the_checkpoints_size() {
    let quota = Quota { sandboxes: 9, cpu: 3, memory_mb: 100_000, ..Quota::default() };
    let host = Host::with(|config| config.plans.pro.quota = quota).await;
    let snapshot = checkpoint(&host, true).await;
    let refused = host.create(json!({"snapshot_id": snapshot})).await.refused(422, "sandbox_quota_exceeded");
    assert_eq!(
        refused["quota"]["reservation"],
        json!({"sandboxes": 1, "cpu": 2, "memory_mb": 512, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
}

#[tokio::test]
async fn a_snapshot_that_is_not_there_is_404() {
    let host = Host::new().await;
    let snapshot = checkpoint(&host, true).await;
    host.call("DELETE", &format!("/v1/checkpoints/{snapshot}"), &host.write, None).await.expect(204);
    for gone in [snapshot.as_str(), "ckp0000000000000000000000", "nonsense", ""] {
        host.create(json!({"snapshot_id": gone})).await.refused(404, "not_found");
    }
    host.create(json!({"template": snapshot})).await.refused(404, "not_found");
    host.create(json!({"template": "base", "snapshot_id": snapshot})).await.blames("snapshot_id");
}
