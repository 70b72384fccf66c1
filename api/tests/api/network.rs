//! `PUT /v1/sandboxes/{id}/network` and what follows from it, while the agent answers; [`super::network_worker`] is about
//! the other times.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_protocol::agent::{Denied, NetworkPolicy};
use serde_json::{Value, json};

use crate::support::{Answer, Host, request, with_header};

async fn put(host: &Host, id: &str, body: Value) -> Answer {
    host.call("PUT", &format!("/v1/sandboxes/{id}/network"), &host.write, Some(body)).await
}

async fn shown(host: &Host, id: &str) -> Value {
    host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["network"].take()
}

#[tokio::test]
async fn a_policy_is_at_the_agent_before_it_is_answered() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let policy = json!({
        "allow_internet_access": false, "allow_package_registry_access": true, "deny_out": ["198.51.100.0/24"],
        "allow_out": ["api.example.test:443", "*.example.test", "2001:db8::/32"], "egress_profiles": ["weather"],
    });

    let answer = put(&host, &id, policy.clone()).await.expect(200);

    let held = host.agent.network(&id);
    assert_eq!(serde_json::to_value(&held.policy).unwrap(), policy);
    assert_eq!(held.version, 2);
    let mut network = policy;
    network["allow_public_traffic"] = json!(true);
    network["apply_status"] = json!("applied");
    assert_eq!(answer, json!({"network": network, "apply_status": "applied"}));
    assert_eq!(shown(&host, &id).await, network);
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"][0]["network"], network);
}

#[tokio::test]
async fn what_is_left_out_returns_to_its_default() {
    let host = Host::new().await;
    let created = host.create(json!({"template": "base", "allow_public_traffic": false})).await.expect(201);
    let id = created["id"].as_str().unwrap();
    let policy = json!({"allow_internet_access": false, "deny_out": ["192.0.2.1"], "egress_profile": "weather"});
    put(&host, id, policy).await.expect(200);

    let answer = put(&host, id, json!({"allow_out": ["192.0.2.1"], "deny_out": null})).await.expect(200);

    let network = json!({
        "allow_internet_access": true, "allow_package_registry_access": false, "allow_public_traffic": false,
        "allow_out": ["192.0.2.1"], "deny_out": [], "egress_profiles": [], "apply_status": "applied",
    });
    assert_eq!(answer["network"], network);
    put(&host, id, json!({})).await.expect(200);
    assert_eq!(host.agent.network(id).policy, NetworkPolicy::default());
}

#[tokio::test]
async fn a_new_sandbox_starts_with_the_policy_of_its_order() {
    let host = Host::new().await;
    let body = json!({
        "template": "base", "allow_internet_access": false, "allow_package_registry_access": true,
        "allow_out": ["api.example.test"], "deny_out": ["192.0.2.0/24:25"], "egress_profile": "weather",
        "egress_profiles": ["package-registries", "weather"],
    });

    let created = host.create(body).await.expect(201);

    let order = host.agent.records().orders[0].network.clone();
    let policy = NetworkPolicy {
        allow_internet_access: false,
        allow_package_registry_access: true,
        allow_out: vec!["api.example.test".into()],
        deny_out: vec!["192.0.2.0/24:25".into()],
        egress_profiles: vec!["weather".into(), "package-registries".into()],
    };
    assert_eq!((order.version, order.policy), (1, policy));
    assert_eq!(created["network"]["egress_profiles"], json!(["weather", "package-registries"]));
    assert_eq!(created["network"]["apply_status"], "applied");
}

#[tokio::test]
async fn a_sandbox_from_a_checkpoint_has_the_policy_that_its_own_request_names() {
    let host = Host::new().await;
    let source = host.create(json!({"template": "base", "allow_internet_access": false})).await.expect(201);
    let checkpoint = host.checkpoint(source["id"].as_str().unwrap(), json!({})).await["id"].take();

    let open = host.create(json!({"snapshot_id": checkpoint})).await.expect(201);
    let listed = host.create(json!({"snapshot_id": checkpoint, "deny_out": ["192.0.2.1"]})).await.expect(201);

    assert_eq!(open["network"]["allow_internet_access"], true);
    assert_eq!(listed["network"]["deny_out"], json!(["192.0.2.1"]));
}

#[tokio::test]
async fn malformed_entries_are_blamed_one_by_one() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    for (policy, fields) in [
        (json!({"allow_out": ["ok.example.test", "https://example.test"]}), vec!["allow_out[1]"]),
        (json!({"deny_out": ["10.0.0.1/8"]}), vec!["deny_out[0]"]),
        (json!({"deny_out": ["192.0.2.1:0"]}), vec!["deny_out[0]"]),
        (json!({"deny_out": ["192.0.2.1:65536"]}), vec!["deny_out[0]"]),
        (json!({"allow_out": [""], "deny_out": ["*", "a b"]}), vec!["allow_out[0]", "deny_out[0]", "deny_out[1]"]),
        (json!({"allow_out": "example.test"}), vec!["allow_out"]),
        (json!({"allow_out": [7]}), vec!["allow_out[0]"]),
        (json!({"allow_internet_access": "no"}), vec!["allow_internet_access"]),
        (json!({"egress_profiles": ["weather", "wether"]}), vec!["egress_profiles[1]"]),
        (json!({"egress_profile": "wether"}), vec!["egress_profile"]),
    ] {
        let mut order = policy.clone();
        order["template"] = json!("base");
        for answer in [put(&host, &id, policy).await, host.create(order).await] {
            let refused = answer.refused(400, "invalid_request");
            let details = refused["details"].as_array().unwrap().iter();
            assert_eq!(details.map(|detail| detail["field"].as_str().unwrap()).collect::<Vec<_>>(), fields);
        }
    }
    assert_eq!(host.agent.network(&id).version, 1);
    assert_eq!(host.agent.records().orders.len(), 1);
}

#[tokio::test]
async fn a_malformed_entry_is_repeated_in_its_error() {
    let host = Host::new().await;
    let id = host.sandbox().await;

    let refused = put(&host, &id, json!({"deny_out": ["https://example.test"]})).await.refused(400, "invalid_request");

    let reason = refused["details"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("https://example.test"), "{reason}");
}

#[tokio::test]
async fn an_unknown_profile_is_refused_with_those_that_exist() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let refused = put(&host, &id, json!({"egress_profile": "wether"})).await.refused(400, "invalid_request");
    let reason = refused["details"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("wether") && reason.contains("package-registries, weather"), "{reason}");

    // One that the operator adds is found at once, although the names were asked for a moment ago.
    host.agent.records().profiles.push("wether".into());
    put(&host, &id, json!({"egress_profile": "wether"})).await.expect(200);
}

#[tokio::test]
async fn too_many_or_too_long_entries_are_refused() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let entries = |count: u32| (0..count).map(|n| format!("h{n}.test")).collect::<Vec<_>>();

    put(&host, &id, json!({"allow_out": entries(5_001), "deny_out": entries(5_000)})).await.blames("allow_out");
    let long = format!("{}.test", ["a".repeat(63), "b".repeat(63), "c".repeat(63)].join("."));
    put(&host, &id, json!({"allow_out": vec![long; 3_000]})).await.blames("allow_out");
    put(&host, &id, json!({"allow_out": entries(5_000), "deny_out": entries(5_000)})).await.expect(200);

    assert_eq!(shown(&host, &id).await["deny_out"].as_array().unwrap().len(), 5_000);
}

#[tokio::test]
async fn what_the_operation_does_not_know_is_refused() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    for body in [json!({"deny_uot": ["192.0.2.1"]}), json!({"allow_public_traffic": true}), json!([])] {
        put(&host, &id, body).await.refused(400, "invalid_request");
    }
    // No body is no policy: it would open everything.
    let path = format!("/v1/sandboxes/{id}/network");
    host.call("PUT", &path, &host.write, None).await.refused(400, "invalid_request");
    assert!(host.agent.records().policy_orders.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_changes_reach_the_agent_in_order_and_the_newest_stays() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let path = format!("/v1/sandboxes/{id}/network");
    let change = |n| request("PUT", &path, &host.write, Some(json!({"deny_out": [format!("192.0.2.{n}")]})));
    for answer in host.at_once((0..24).map(change)).await {
        // Pending, where the next one was recorded before this one was answered.
        answer.expect(200);
    }

    let versions = host.agent.records().policy_orders.clone();
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    let held = host.agent.network(&id);
    assert_eq!(held.version, 25);
    let network = shown(&host, &id).await;
    assert_eq!((&network["deny_out"], &network["apply_status"]), (&json!(held.policy.deny_out), &json!("applied")));
}

#[tokio::test]
async fn a_stopped_sandbox_has_its_policy_written_down() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);

    let answer = put(&host, &id, json!({"allow_internet_access": false})).await.expect(200);

    assert_eq!(answer["apply_status"], "applied");
    let resumed = host.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.expect(200);
    assert_eq!(resumed["sandbox"]["network"], answer["network"]);
    assert_eq!(host.agent.records().policy_orders, [2]);
}

#[tokio::test]
async fn forks_inherit_the_policy_and_go_their_own_ways() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    put(&host, &id, json!({"allow_internet_access": false, "allow_out": ["*.example.test"]})).await.expect(200);

    let forked = host.post(&format!("/v1/sandboxes/{id}/fork"), json!({"count": 2})).await.expect(201);

    let ids: Vec<&str> = (0..2).map(|n| forked["sandboxes"][n]["id"].as_str().unwrap()).collect();
    let network = shown(&host, &id).await;
    for fork in forked["sandboxes"].as_array().unwrap() {
        assert_eq!(fork["network"], network);
    }
    put(&host, ids[0], json!({})).await.expect(200);
    assert_eq!(host.agent.network(ids[0]).policy, NetworkPolicy::default());
    assert_eq!(host.agent.network(ids[1]), host.agent.network(&id));
}

#[tokio::test]
async fn a_sandbox_that_failed_or_is_gone_takes_no_policy() {
    let host = Host::new().await;
    let (failed, deleted, lost) = (host.sandbox().await, host.sandbox().await, host.sandbox().await);
    host.agent.fail(&failed);
    host.sync().await;
    host.call("DELETE", &format!("/v1/sandboxes/{deleted}"), &host.write, None).await.expect(204);
    host.agent.records().sandboxes.remove(&lost);

    put(&host, &failed, json!({})).await.refused(409, "invalid_state");
    put(&host, &deleted, json!({})).await.refused(404, "not_found");
    put(&host, &lost, json!({})).await.refused(404, "not_found");
    host.get(&format!("/v1/sandboxes/{lost}")).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_repetition_with_the_key_changes_nothing() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let send = async || {
        let path = format!("/v1/sandboxes/{id}/network");
        let order = request("PUT", &path, &host.write, Some(json!({"allow_internet_access": false})));
        host.send(with_header(order, "idempotency-key", "k1")).await
    };
    let first = send().await.expect(200);
    put(&host, &id, json!({"allow_internet_access": true})).await.expect(200);

    let again = send().await;

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(200), first);
    assert_eq!(shown(&host, &id).await["allow_internet_access"], true);
}

#[tokio::test]
async fn the_audit_names_the_sandbox_whose_policy_changed() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    put(&host, &id, json!({})).await.expect(200);

    let entries = host.app.store.audit.newest(Some(&id), 1).await.unwrap();

    assert_eq!((entries[0].action.as_str(), entries[0].status), ("PUT /v1/sandboxes/{id}/network", 200));
}

#[tokio::test]
async fn a_policy_goes_with_its_sandbox() {
    let host = Host::new().await;
    let id =
        host.create(json!({"template": "base", "deny_out": ["hush-hush-hush.test"]})).await.expect(201)["id"].take();
    let id = id.as_str().unwrap();
    assert!(host.app.store.sandboxes.wanted_policy(id).await.unwrap().is_some());

    host.call("DELETE", &format!("/v1/sandboxes/{id}"), &host.write, None).await.expect(204);

    assert_eq!(host.app.store.sandboxes.wanted_policy(id).await.unwrap(), None);
}

#[tokio::test]
async fn what_was_denied_is_asked_of_the_agent() {
    let mut host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/network/denied", host.sandbox().await);
    let time: Timestamp = "2026-08-01T12:00:00Z".parse().unwrap();
    let tcp = Denied {
        time,
        protocol: "tcp".into(),
        host: "192.0.2.7".into(),
        port: Some(25),
        rule: "deny_out \"192.0.2.0/24\"".into(),
        count: 3,
    };
    let dns = Denied { protocol: "dns".into(), host: "example.test".into(), port: None, ..tcp.clone() };
    host.agent.records().denied = vec![tcp, dns];

    let list = host.get(&path).await.expect(200);

    let rule = "deny_out \"192.0.2.0/24\"";
    assert_eq!(
        list,
        json!({"total": 7, "denied": [
            {"time": "2026-08-01T12:00:00Z", "protocol": "tcp", "host": "192.0.2.7", "port": 25, "rule": rule, "count": 3},
            {"time": "2026-08-01T12:00:00Z", "protocol": "dns", "host": "example.test", "rule": rule, "count": 3},
        ]})
    );
    host.agent.stop();
    host.get(&path).await.refused(503, "host_unavailable");
}

#[tokio::test]
async fn profiles_are_remembered_while_the_agent_is_away() {
    let mut host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.stop();
    host.get("/v1/egress_profiles").await.refused(503, "host_unavailable");
    let named = json!({"egress_profiles": ["weather"]});
    put(&host, &id, named.clone()).await.refused(503, "host_unavailable");
    host.agent.resume();
    let known = json!({"profiles": ["package-registries", "weather"]});
    assert_eq!(host.get("/v1/egress_profiles").await.expect(200), known);
    host.agent.stop();
    host.pass(jiff::SignedDuration::from_hours(5));

    assert_eq!(host.get("/v1/egress_profiles").await.expect(200), known);
    assert_eq!(put(&host, &id, named).await.expect(200)["apply_status"], "pending");
    put(&host, &id, json!({"egress_profile": "wether"})).await.blames("egress_profile");
}

#[tokio::test]
async fn a_policy_for_a_sandbox_that_is_being_made_waits_for_it() {
    let host = Host::with(|config| config.timing.create_wait = Duration::from_millis(20)).await;
    host.agent.hold();
    let created = host.create(json!({"template": "base"})).await.expect(201);
    let id = created["id"].as_str().unwrap();

    let answer = put(&host, id, json!({"allow_internet_access": false})).await.expect(200);

    assert_eq!((&created["network"]["apply_status"], &answer["apply_status"]), (&json!("pending"), &json!("pending")));
    assert!(host.agent.records().policy_orders.is_empty());
}

#[tokio::test]
async fn a_policy_is_explained_by_the_host() {
    let host = Host::new().await;
    let explain = async |query: &str| host.call("GET", &format!("/v1/network/explain?{query}"), &host.read, None).await;
    let policy =
        "allow_internet_access=false&allow_out=api.example.com:443&allow_out=*.example.org&deny_out=a.example.org";
    let destinations =
        "destination=tcp:api.example.com:443&destination=udp:a.example.org:53&destination=icmp:198.51.100.7";

    let explained = explain(&format!("{policy}&{destinations}")).await.expect(200);

    let rules: Vec<_> =
        explained["decisions"].as_array().unwrap().iter().map(|one| one["rule"].as_str().unwrap()).collect();
    assert_eq!(
        rules,
        [r#"allow_out "api.example.com:443""#, r#"allow_out "*.example.org""#, "allow_internet_access false"]
    );
    assert_eq!(explained["decisions"][0]["allowed"], json!(true));
    assert_eq!(
        explained["decisions"][2],
        json!({
            "destination": "icmp:198.51.100.7", "allowed": false, "rule": "allow_internet_access false",
        })
    );
    assert_eq!(explain("destination=tcp:example.com:1").await.expect(200)["decisions"][0]["allowed"], json!(true));
    let many = "destination=tcp:example.com:443&".repeat(101);
    for wrong in [
        "",
        "destination=example.com",
        "destination=tcp:a:1&allow_out=not+a+host",
        "destination=tcp:a:1&x=1",
        "destination=tcp:a:1&allow_internet_access=perhaps",
        "destination=tcp:a:1&egress_profile=none",
        many.trim_end_matches('&'),
    ] {
        explain(wrong).await.refused(400, "invalid_request");
    }
    assert!(host.agent.records().policy_orders.is_empty());
}
