//! Requests that make no sense, or ask for what is not there.

use serde_json::json;

use crate::support::Host;
use crate::support::shop::Shop;

#[tokio::test]
async fn a_field_that_does_not_exist_is_refused() {
    let host = Host::new().await;
    host.create(json!({"template": "base", "deny_uot": ["10.0.0.0/8"]})).await.refused(400, "invalid_request");
    let lifecycle = json!({"on_timeout": "kill", "autoresume": true});
    host.create(json!({"template": "base", "lifecycle": lifecycle})).await.refused(400, "invalid_request");
    assert!(host.agent.records().orders.is_empty());
}

#[tokio::test]
async fn wrong_types_are_blamed_on_their_field() {
    let host = Host::new().await;
    for (body, field) in [
        (json!({"template": 7}), "template"),
        (json!({"template": "base", "timeout": "60"}), "timeout"),
        (json!({"template": "base", "capture_output": "yes"}), "capture_output"),
        (json!({"template": "base", "timeout": 1.5}), "timeout"),
        (json!({"template": "base", "timeout": -1}), "timeout"),
        (json!({"template": "base", "envs": {"A": 1}}), "envs.A"),
        (json!({"template": "base", "lifecycle": {"on_timeout": "sleep"}}), "lifecycle.on_timeout"),
        (json!({"template": "base", "exposed_ports": [{"port": 70000}]}), "exposed_ports[0].port"),
        (json!({"template": "base", "exposed_ports": [{"port": 80, "protocol": "tcp"}]}), "exposed_ports[0].protocol"),
        (json!([]), "body"),
    ] {
        host.create(body).await.blames(field);
    }
}

#[tokio::test]
async fn values_out_of_bounds_are_blamed_on_their_field() {
    let host = Host::new().await;
    let many: serde_json::Map<_, _> = (0..65).map(|n| (format!("k{n}"), json!("v"))).collect();
    for (body, field) in [
        (json!({}), "template"),
        (json!({"template": ""}), "template"),
        (json!({"template": "base", "timeout": 0}), "timeout"),
        (json!({"template": "base", "timeout": 86_401}), "timeout"),
        (json!({"template": "base", "metadata": many}), "metadata"),
        (json!({"template": "base", "metadata": {"k": "v".repeat(5000)}}), "metadata.k"),
        (json!({"template": "base", "envs": {"A=B": "c"}}), "envs"),
        (json!({"template": "base", "envs": {"A": "nul\u{0}"}}), "envs.A"),
        (json!({"template": "base", "envs": {"A": "v".repeat(40_000)}}), "envs"),
        (json!({"template": "base", "exposed_ports": [{"port": 0}]}), "exposed_ports[0].port"),
        (json!({"template": "base", "exposed_ports": [{"port": 1}, {"port": 1}]}), "exposed_ports[1].port"),
        (json!({"template": "base", "cpu": 3}), "cpu"),
        (json!({"template": "base", "memory_mb": 64}), "memory_mb"),
        (json!({"template": "base", "memory_mb": 1000}), "memory_mb"),
        (json!({"template": "base", "memory_mb": 20_480}), "memory_mb"),
    ] {
        host.create(body).await.blames(field);
    }
}

#[tokio::test]
async fn contradictions_are_refused() {
    let host = Host::new().await;
    for (body, field) in [
        (json!({"template": "base", "snapshot_id": "ckp1"}), "snapshot_id"),
        (json!({"template": "base", "auto_pause": true, "lifecycle": {"on_timeout": "kill"}}), "auto_pause"),
        (json!({"template": "base", "lifecycle": {"auto_resume": true}}), "lifecycle.auto_resume"),
        (
            json!({"template": "base", "lifecycle": {"on_timeout": "kill", "auto_resume": true}}),
            "lifecycle.auto_resume",
        ),
        (json!({"template": "base", "lifecycle": {"pause_memory": false}}), "lifecycle.pause_memory"),
    ] {
        host.create(body).await.blames(field);
    }
}

#[tokio::test]
async fn what_this_host_cannot_do_yet_is_refused_and_never_ignored() {
    let host = Host::new().await;
    host.create(json!({"template": "base", "volume_mounts": {"data": "d"}})).await.blames("volume_mounts");
    assert!(host.agent.records().orders.is_empty());
}

#[tokio::test]
async fn what_holds_anyway_may_be_said() {
    let host = Host::new().await;
    let body = json!({
        "template": "base", "auto_pause": false, "lifecycle": {"on_timeout": "kill", "auto_resume": false},
        "volume_mounts": {}, "allow_internet_access": true, "allow_package_registry_access": false,
        "allow_out": [], "deny_out": [], "egress_profiles": [], "snapshot_id": null, "egress_profile": null,
    });
    host.create(body).await.expect(201);
}

#[tokio::test]
async fn all_problems_are_reported_at_once() {
    let host = Host::new().await;
    let body =
        host.create(json!({"timeout": 0, "deny_out": ["a", "10.0.0.1/8"]})).await.refused(400, "invalid_request");
    let fields: Vec<_> = body["details"].as_array().unwrap().iter().map(|detail| detail["field"].as_str()).collect();
    assert_eq!(fields, [Some("template"), Some("timeout"), Some("deny_out[1]")]);
}

#[tokio::test]
async fn the_basic_plan_takes_the_templates_size() {
    let host = Host::new().await;
    let body = json!({"template": "base", "memory_mb": 512});
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(body)).await.refused(403, "plan_required");
    // Schema comes before plan.
    let body = json!({"template": "base", "memory_mb": 512, "timeout": 0});
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(body)).await.refused(400, "invalid_request");

    let body = host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    assert_eq!((&body["memory_mb"], &body["disk_gib"]), (&json!(256), &json!(10)));
}

#[tokio::test]
async fn the_character_nul_is_refused_on_either_database() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    host.create(json!({"template": "base", "metadata": {"a": "\u{0}"}})).await.blames("metadata.a");
    host.create(json!({"template": "base\u{0}"})).await.blames("template");
    for path in ["sandboxes/sbx%00", "checkpoints/ckp%00", "sandboxes/sbx%00/logs", "sandboxes?query[metadata][a]=%00"]
    {
        host.get(&format!("/v1/{path}")).await.refused(400, "invalid_request");
    }
    host.call("DELETE", "/v1/sandboxes/sbx%00", &host.write, None).await.refused(400, "invalid_request");
    host.call("DELETE", "/v1/sandboxes/sbx%00", &host.read, None).await.refused(403, "insufficient_scope");
    host.call("GET", "/v1/sandboxes/sbx%00", "nonsense", None).await.refused(401, "unauthorized");
    for path in ["payments/pay%00", "deliveries/dlv%00", "merchants/mer%00/keys", "payments?merchantId=%00"] {
        let answer = host.call("GET", &format!("/operator/v1/{path}"), &shop.operator, None).await;
        answer.denied(400, "INVALID_ARGUMENT", "NUL_CHARACTER");
    }
    let answer = host.call("GET", "/merchant/api/v1/payment/pay%00", &shop.live.public, None).await;
    answer.denied(400, "INVALID_ARGUMENT", "NUL_CHARACTER");
}
