//! Create, connect, show, time-outs, pause, kill.

use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::agent::{Lifecycle, OnTimeout, Previews, SandboxState};
use serde_json::{Value, json};

use super::{id, sdk_request};
use crate::support::{Host, with_header};

fn time(text: &Value) -> Timestamp {
    text.as_str().unwrap().parse().unwrap()
}

/// Seconds from now.
fn ahead(deadline: &Value) -> i64 {
    time(deadline).duration_since(Timestamp::now()).as_secs()
}

#[tokio::test]
async fn create_takes_what_the_sdks_send_and_answers_what_they_read() {
    let host = Host::new().await;
    let created = host
        .sdk_create(json!({
            "templateID": "base", "timeout": 60, "autoPause": true, "autoPauseMemory": true,
            "autoResume": {"enabled": true},
            "network": {"allowPublicTraffic": false, "allowOut": ["x.example"], "denyOut": ["0.0.0.0/0"],
                        "maskRequestHost": "localhost:${PORT}"},
            "metadata": {"a": "b"}, "envVars": {"X": "1"}
        }))
        .await;
    let sandbox = id(&created);
    assert!(sandbox.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{sandbox}");
    assert_eq!((&created["templateID"], &created["envdVersion"]), (&json!("base"), &json!("0.6.13")));
    assert!(created["clientID"].is_string() && created.get("domain").is_none(), "{created}");
    assert_eq!(created["envdAccessToken"], format!("access-{sandbox}"));
    assert_eq!(created["trafficAccessToken"], format!("traffic-{sandbox}"));

    let order = host.agent.records().orders[0].clone();
    assert_eq!(order.lifecycle, Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: true, pause_memory: true });
    assert_eq!(order.previews, Previews { all_ports: true, mask_host: Some("localhost:${PORT}".into()) });
    assert_eq!((order.timeout_seconds, order.allow_public_traffic), (60, false));
    assert_eq!(order.envs["X"], "1");
    assert!(!order.network.policy.allow_internet_access && order.network.policy.allow_out == ["x.example"]);

    let shown = host.sdk("GET", &format!("/sandboxes/{sandbox}"), None).await.expect(200);
    assert_eq!((&shown["state"], &shown["metadata"]), (&json!("running"), &json!({"a": "b"})));
    assert_eq!(shown["lifecycle"], json!({"autoResume": true, "onTimeout": "pause"}));
    assert_eq!(shown["network"]["maskRequestHost"], "localhost:${PORT}");
    assert_eq!(shown["network"]["allowPublicTraffic"], false);
    assert_eq!(shown["envdAccessToken"], created["envdAccessToken"]);
    assert_eq!((&shown["cpuCount"], &shown["memoryMB"]), (&json!(1), &json!(256)));
    assert!((50..=60).contains(&ahead(&shown["endAt"])), "{shown}");
}

#[tokio::test]
async fn each_path_has_its_own_default_timeout_and_public_ports_have_no_token() {
    let host = Host::new().await;
    let created = host.sdk_create(json!({"templateID": "base"})).await;
    assert_eq!(created.get("trafficAccessToken"), None);
    let old = json!({"templateID": "base", "secure": true, "autoPause": false});
    host.sdk("POST", "/sandboxes", Some(old)).await.expect(201);

    let timeouts: Vec<u64> = host.agent.records().orders.iter().map(|order| order.timeout_seconds).collect();
    assert_eq!(timeouts, [300, 15]);
}

#[tokio::test]
async fn what_a_host_cannot_do_is_refused_and_named() {
    let host = Host::new().await;
    for (field, value) in [
        ("mcp", json!({"x": {}})),
        ("iam", json!({"tokens": {}})),
        ("volumeMounts", json!([{"name": "v", "path": "v"}])),
        ("network", json!({"dnsServers": ["192.0.2.1"]})),
        ("network", json!({"egressProxy": {"address": "p.example:1"}})),
        ("network", json!({"httpsPorts": [443]})),
        ("network", json!({"rules": {"x.example": [{"transform": {"headers": {"a": "b"}}}]}})),
        ("network", json!({"maskRequestHost": "a b"})),
        ("netwrok", json!({})),
        ("timeout", json!(0)),
        ("timeout", json!(10_000_000)),
        ("autoResume", json!({"enabled": true})),
    ] {
        let body = json!({"templateID": "base", field: value});
        let message = host.sdk("POST", "/v2/sandboxes", Some(body)).await.fails(400);
        let named = if field == "autoResume" { "auto_resume" } else { field };
        assert!(message.contains(named), "{field}: {message}");
    }
    let harmless = json!({"templateID": "base", "mcp": null, "volumeMounts": [], "network": {"rules": {}}});
    host.sdk_create(harmless).await;
    host.sdk("POST", "/v2/sandboxes", Some(json!({"templateID": "nosuch"}))).await.fails(404);
}

#[tokio::test]
async fn connect_never_shortens_and_says_whether_it_resumed() {
    let host = Host::new().await;
    let created = host.sdk_create(json!({"templateID": "base", "timeout": 5000})).await;
    let (sandbox, path) = (id(&created), format!("/sandboxes/{}", id(&created)));
    let end = async || host.sdk("GET", &path, None).await.expect(200)["endAt"].clone();
    let before = end().await;

    for path in [format!("/v2{path}/connect"), format!("{path}/connect")] {
        let connected = host.sdk("POST", &path, Some(json!({"timeout": 60}))).await.expect(200);
        assert_eq!(connected, created, "the same names and the same token");
    }
    assert_eq!(end().await, before);
    host.sdk("POST", &format!("{path}/connect"), Some(json!({"timeout": 9000}))).await.expect(200);
    assert!(ahead(&end().await) > 8900);
    host.sdk("POST", &format!("{path}/resume"), Some(json!({}))).await.fails(409);

    host.sdk("POST", &format!("{path}/pause"), Some(json!({}))).await.expect(204);
    let connected = host.sdk("POST", &format!("/v2{path}/connect"), Some(json!({}))).await.expect(201);
    assert_eq!(connected["envdAccessToken"], created["envdAccessToken"]);
    assert_eq!(host.agent.records().sandboxes[&sandbox].state, SandboxState::Ready);
    host.sdk("POST", "/v2/sandboxes/sbx0000000000000000000000/connect", Some(json!({}))).await.fails(404);
}

#[tokio::test]
async fn pause_says_when_it_was_paused_already_and_may_keep_the_disk_alone() {
    let host = Host::new().await;
    let path = format!("/sandboxes/{}", host.sdk_sandbox().await);
    host.sdk("POST", &format!("{path}/pause"), Some(json!({}))).await.expect(204);
    host.sdk("POST", &format!("{path}/pause"), Some(json!({}))).await.fails(409);
    assert_eq!(host.sdk("GET", &path, None).await.expect(200)["state"], "paused");

    host.sdk("POST", &format!("/v2{path}/connect"), Some(json!({"memory": false}))).await.expect(201);
    host.sdk("POST", &format!("{path}/pause"), Some(json!({"memory": false}))).await.expect(204);
    host.sdk("POST", &format!("{path}/resume"), Some(json!({"autoPause": true}))).await.expect(201);

    assert_eq!(host.agent.records().disk_only, [false, true, true, false]);
    let shown = host.sdk("GET", &path, None).await.expect(200);
    assert_eq!(shown["lifecycle"]["onTimeout"], "pause");
}

#[tokio::test]
async fn a_pause_at_the_timeout_may_keep_the_disk_alone() {
    let host = Host::new().await;
    let body = json!({"templateID": "base", "autoPause": true, "autoPauseMemory": false});
    let sandbox = id(&host.sdk_create(body.clone()).await);
    let order = host.agent.records().orders[0].lifecycle;
    assert_eq!(order, Lifecycle { on_timeout: OnTimeout::Pause, auto_resume: false, pause_memory: false });
    let shown = host.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200);
    assert_eq!(shown["lifecycle"]["pause_memory"], false);

    host.sdk("POST", &format!("/sandboxes/{sandbox}/timeout"), Some(json!({"timeout": 0}))).await.expect(204);
    assert_eq!(host.agent.records().disk_only, [true]);

    let mut woken = body;
    woken["autoResume"] = json!({"enabled": true});
    let message = host.sdk("POST", "/v2/sandboxes", Some(woken)).await.fails(400);
    assert!(message.contains("autoPauseMemory"), "{message}");
    host.sdk_create(json!({"templateID": "base", "autoPause": false, "autoPauseMemory": false})).await;
}

#[tokio::test]
async fn a_timeout_counts_from_now_and_zero_is_now() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let path = format!("/sandboxes/{sandbox}");
    let end = async || ahead(&host.sdk("GET", &path, None).await.expect(200)["endAt"]);

    host.sdk("POST", &format!("{path}/timeout"), Some(json!({"timeout": 20}))).await.expect(204);
    assert!((10..=20).contains(&end().await));
    host.sdk("POST", &format!("{path}/refreshes"), Some(json!({"duration": 5}))).await.expect(204);
    assert!((10..=20).contains(&end().await), "a refresh takes nothing away");
    host.sdk("POST", &format!("{path}/refreshes"), Some(json!({"duration": 90}))).await.expect(204);
    assert!((80..=90).contains(&end().await));

    host.sdk("POST", &format!("{path}/timeout"), Some(json!({"timeout": 0}))).await.expect(204);
    host.sdk("GET", &path, None).await.fails(404);
    host.sdk("POST", &format!("{path}/timeout"), Some(json!({"timeout": 20}))).await.fails(404);

    let pausing = id(&host.sdk_create(json!({"templateID": "base", "autoPause": true})).await);
    host.sdk("POST", &format!("/sandboxes/{pausing}/timeout"), Some(json!({"timeout": 0}))).await.expect(204);
    assert_eq!(host.sdk("GET", &format!("/sandboxes/{pausing}"), None).await.expect(200)["state"], "paused");
    host.sdk("POST", &format!("/sandboxes/{pausing}/timeout"), Some(json!({"timeout": 20}))).await.fails(404);
}

#[tokio::test]
async fn a_kill_ends_what_runs_and_what_is_paused_and_404_is_for_what_never_was() {
    let host = Host::new().await;
    let (live, paused) = (host.sdk_sandbox().await, host.sdk_sandbox().await);
    host.sdk("POST", &format!("/sandboxes/{paused}/pause"), Some(json!({}))).await.expect(204);
    for sandbox in [live, paused] {
        host.sdk("DELETE", &format!("/sandboxes/{sandbox}"), None).await.expect(204);
        host.sdk("DELETE", &format!("/sandboxes/{sandbox}"), None).await.fails(404);
    }
}

#[tokio::test]
async fn forks_go_on_for_the_time_that_was_asked_for() {
    let host = Host::new().await;
    let path = format!("/sandboxes/{}", host.sdk_sandbox().await);
    let forks = host.sdk("POST", &format!("{path}/fork"), Some(json!({"count": 2, "timeout": 900}))).await.expect(201);
    let forks = forks.as_array().unwrap();
    assert_eq!(forks.len(), 2);
    for fork in forks {
        let sandbox = id(&fork["sandbox"]);
        assert_eq!(fork["sandbox"]["envdAccessToken"], format!("access-{sandbox}"));
        let shown = host.sdk("GET", &format!("/sandboxes/{sandbox}"), None).await.expect(200);
        assert!(ahead(&shown["endAt"]) > 800, "{shown}");
        assert_eq!(host.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200)["timeout"], 900);
    }
    assert!(host.agent.records().timeouts.is_empty(), "they are made with it, so nothing is lost in between");
    host.sdk("POST", &format!("{path}/fork"), Some(json!({"count": 21}))).await.fails(400);
    host.sdk("POST", &format!("{path}/pause"), Some(json!({}))).await.expect(204);
    host.sdk("POST", &format!("{path}/fork"), Some(json!({"count": 1}))).await.fails(409);
}

#[tokio::test]
async fn a_repeated_create_gets_the_same_sandbox_and_its_token_is_not_stored() {
    let host = Host::new().await;
    let create = async || {
        let request = sdk_request("POST", "/v2/sandboxes", &host.write, Some(json!({"templateID": "base"})));
        host.send(with_header(request, "idempotency-key", "abc-1")).await
    };
    let first = create().await.expect(201);

    let again = create().await;

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(201), first);
    assert_eq!(host.agent.records().sandboxes.len(), 1);
    let token = first["envdAccessToken"].as_str().unwrap();
    assert!(!host.stores(token).await, "the token is in the database");
}

#[tokio::test]
async fn what_was_made_for_a_create_without_a_response_is_the_response_to_the_next() {
    let host = Host::new().await;
    let create = async || {
        let request = sdk_request("POST", "/v2/sandboxes", &host.write, Some(json!({"templateID": "base"})));
        host.send(with_header(request, "idempotency-key", "abc-1")).await
    };
    // The agent makes the sandbox, and is away when its tokens are asked for: twice.
    host.agent.records().refuse_tokens = Some((503, "unavailable"));
    create().await.fails(503);
    create().await.fails(503);
    host.agent.records().refuse_tokens = None;

    let answer = create().await.expect(201);

    let orders = host.agent.records().orders.iter().map(|order| order.id.to_string()).collect::<Vec<_>>();
    assert_eq!(orders, [answer["sandboxID"].as_str().unwrap()]);
}

#[tokio::test]
async fn a_full_quota_is_too_many_requests_and_a_full_host_says_so() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    host.sdk_sandbox().await;
    let body = Some(json!({"templateID": "base"}));
    host.sdk("POST", "/v2/sandboxes", body.clone()).await.fails(429);

    let host = Host::new().await;
    host.agent.records().refuse = Some((503, "capacity_unavailable"));
    let answer = host.sdk("POST", "/v2/sandboxes", body).await.expect(503);
    assert_eq!(answer["error_code"], "sandbox_capacity_unavailable");
}

#[tokio::test]
async fn a_log_is_there_in_both_forms() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let new =
        host.sdk("GET", &format!("/v2/sandboxes/{sandbox}/logs?limit=5&direction=forward"), None).await.expect(200);
    let entry = &new["logs"][0];
    assert_eq!((&entry["message"], &entry["level"]), (&json!("started"), &json!("info")));
    let old = host.sdk("GET", &format!("/sandboxes/{sandbox}/logs?start=0"), None).await.expect(200);
    assert_eq!((&old["logs"][0]["line"], &old["logEntries"][0]["message"]), (&json!("started"), &json!("started")));
    host.sdk("GET", &format!("/v2/sandboxes/{sandbox}/logs?direction=up"), None).await.fails(400);
}

#[tokio::test]
async fn a_young_sandbox_is_asked_what_it_uses_now() {
    let host = Host::new().await;
    let (live, paused) = (host.sdk_sandbox().await, host.sdk_sandbox().await);
    host.sdk("POST", &format!("/sandboxes/{paused}/pause"), Some(json!({}))).await.expect(204);

    let metrics = host.sdk("GET", &format!("/sandboxes/{live}/metrics"), None).await.expect(200);
    assert_eq!((&metrics[0]["cpuCount"], &metrics[0]["cpuUsedPct"]), (&json!(2), &json!(12.5)));
    assert_eq!((&metrics[0]["memTotal"], &metrics[0]["diskTotal"]), (&json!(1000), &json!(20)));
    assert!(Timestamp::now().duration_since(time(&metrics[0]["timestamp"])) < SignedDuration::from_mins(1));
    assert_eq!(host.sdk("GET", &format!("/sandboxes/{live}/metrics?start=0"), None).await.expect(200), json!([]));
    assert_eq!(host.sdk("GET", &format!("/sandboxes/{paused}/metrics"), None).await.expect(200), json!([]));

    let many = format!("/sandboxes/metrics?sandbox_ids={live},{paused},sbx0000000000000000000000");
    let many = host.sdk("GET", &many, None).await.expect(200);
    let known: Vec<&String> = many["sandboxes"].as_object().unwrap().keys().collect();
    assert_eq!(known, [&live]);
}

#[tokio::test]
async fn metrics_of_a_window_are_those_that_the_host_measured() {
    let host = Host::new().await;
    let (live, paused) = (host.sdk_sandbox().await, host.sdk_sandbox().await);
    let now = Timestamp::now().as_second();
    for sandbox in [&live, &paused] {
        for second in [now - 90, now - 20, now - 15] {
            host.agent.measure(sandbox, second);
        }
    }
    host.sdk("POST", &format!("/sandboxes/{paused}/pause"), Some(json!({}))).await.expect(204);
    let seconds = async |query: &str| -> Vec<i64> {
        let metrics = host.sdk("GET", &format!("/sandboxes/{paused}/metrics{query}"), None).await.expect(200);
        metrics.as_array().unwrap().iter().map(|metric| metric["timestampUnix"].as_i64().unwrap()).collect()
    };

    assert_eq!(seconds("").await, [now - 90, now - 20, now - 15]);
    assert_eq!(seconds(&format!("?start={}&end={}", now - 60, now - 16)).await, [now - 20]);
    assert_eq!(seconds(&format!("?start={now}")).await, [0; 0]);
    host.sdk("GET", &format!("/sandboxes/{paused}/metrics?start={now}&end={}", now - 1), None).await.fails(400);
    host.sdk("GET", &format!("/sandboxes/{paused}/metrics?start=soon"), None).await.fails(400);

    let many = host.sdk("GET", &format!("/sandboxes/metrics?sandbox_ids={live},{paused}"), None).await.expect(200);
    assert_eq!(many["sandboxes"].as_object().unwrap().len(), 1, "one that is paused uses nothing now");
    let latest = json!({
        "timestamp": Timestamp::from_second(now - 15).unwrap(), "timestampUnix": now - 15, "cpuCount": 1,
        "cpuUsedPct": 50.0, "memUsed": 64 << 20, "memTotal": 256 << 20, "memCache": 0, "diskUsed": 3 << 20,
        "diskTotal": 20_u64 << 30,
    });
    assert_eq!(many["sandboxes"][&live], latest);
}
