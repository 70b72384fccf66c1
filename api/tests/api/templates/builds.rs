//! Versions: asked for, built, started from, cancelled; and what becomes of them when the agent or this process fails.

use sandpiper_api::orchestration::sync::Synchronizer;
use sandpiper_api::plan::Quota;
use sandpiper_protocol::template::{BuildSource, BuildState};
use serde_json::{Value, json};

use crate::support::builds::VERSION_RETAINED;
use crate::support::{Host, eventually, request, with_header};

fn image() -> Value {
    json!({"source": {"image": {"reference": "registry.example/node:22"}}})
}

#[tokio::test]
async fn a_version_is_built_and_started_from_by_slug_number_id_and_tag() {
    let host = Host::new().await;
    host.template("node").await;
    let body = json!({
        "source": {"image": {"reference": "registry.example/node:22"}}, "tags": ["v22", "latest"],
        "runtime_baseline": {"cpu": 2, "memory_mb": 1024}, "disk_gib": 7, "start_cmd": "node /srv/server.js",
        "ready_cmd": "curl -s localhost:3000", "network": {"allow_internet_access": false, "allow_out": ["*.example"]},
    });
    let made = host.build("node", body).await.expect(202);
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!((&made["state"], &made["number"], &made["position"]), (&json!("queued"), &json!(1), &json!(1)));
    assert_eq!((&made["tags"], &made["source"]), (&json!(["v22", "latest"]), &json!("image")));
    {
        let records = host.agent.records();
        let order = &records.builds[&id].order;
        assert_eq!((order.slug.as_str(), order.baseline.cpu, order.disk_gib), ("node", 2, 7));
        assert_eq!(order.start.as_ref().unwrap().ready.as_deref(), Some("curl -s localhost:3000"));
        assert_eq!(order.network.policy.allow_out, ["*.example"]);
        assert!(!order.network.policy.allow_internet_access);
        assert_eq!((order.limits.seconds, order.limits.cpu), (3600, 4));
    }
    let refused = host.create(json!({"template": "node:1"})).await.refused(409, "invalid_state");
    assert!(refused["message"].as_str().unwrap().contains("queued"), "{refused}");
    host.create(json!({"template": "node:v22"})).await.refused(404, "not_found");
    host.agent.advance(&id, BuildState::Building);
    host.sync().await;
    assert_eq!(host.show_version("node", "1").await["state"], "building");

    host.agent.finish_build(&id);
    host.sync().await;

    let ready = host.show_version("node", "v22").await;
    assert_eq!(
        (&ready["state"], &ready["id"], &ready["tags"]),
        (&json!("ready"), &json!(id), &json!(["latest", "v22"]))
    );
    assert_eq!((&ready["size"], &ready["settings"]["workdir"]), (&json!(VERSION_RETAINED), &json!("/app")));
    assert_eq!((&ready["command"], &ready["start_cmd"]), (&json!("node server.js"), &json!("node /srv/server.js")));
    assert!(ready["finished_at"].is_string() && ready["digest"].is_string(), "{ready}");
    for template in ["node".to_owned(), "node:1".to_owned(), format!("node:{id}"), "node:v22".to_owned()] {
        let sandbox = host.create(json!({"template": template})).await.expect(201);
        assert_eq!((&sandbox["template"], &sandbox["template_version"]), (&json!("node"), &json!(id)), "{template}");
        assert_eq!((&sandbox["cpu"], &sandbox["memory_mb"]), (&json!(2), &json!(1024)));
        assert_eq!(sandbox["disk_gib"], 20, "the plan's, which is larger");
    }
    let listed = host.get("/v1/templates/node").await.expect(200);
    assert_eq!((&listed["latest_version"]["number"], &listed["runtime_baseline"]["cpu"]), (&json!(1), &json!(2)));
    // A tag is the newest version's that was given it; an older one that ends later does not get it.
    let tagged = json!({"source": {"image": {"reference": "node"}}, "tags": ["v22"]});
    let second = host.build("node", tagged.clone()).await.expect(202)["id"].as_str().unwrap().to_owned();
    let third = host.build("node", tagged).await.expect(202)["id"].as_str().unwrap().to_owned();
    for done in [&third, &second] {
        host.agent.finish_build(done);
        host.sync().await;
    }
    assert_eq!(host.show_version("node", "v22").await["id"], third);
    assert_eq!(host.show_version("node", "latest").await["id"], id);
}

#[tokio::test]
async fn a_sandbox_has_the_disk_of_its_version_at_least() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.records().templates[1].disk_gib = 50;
    let mut larger = host.agent.records().templates[1].clone();
    (larger.id, larger.slug) = ("ver0000000000000000000007".into(), "large".into());
    host.agent.records().templates.push(larger);
    let sandbox = host.create(json!({"template": "large"})).await.expect(201);
    assert_eq!(sandbox["disk_gib"], 50);
}

#[tokio::test]
async fn the_agent_is_told_what_every_kind_of_source_is() {
    let host = Host::new().await;
    host.template("t").await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
    let busy = host.build("t", json!({"source": {"sandbox": sandbox}})).await.refused(409, "invalid_state");
    assert!(busy["message"].as_str().unwrap().contains("pause"), "{busy}");
    host.post(&format!("/v1/sandboxes/{sandbox}/pause"), json!({})).await.expect(200);
    let upload = host.upload(b"tar").await;
    let sources = [
        json!({"checkpoint": checkpoint}),
        json!({"sandbox": sandbox}),
        json!({"image": {"reference": "node:22", "credentials": {"username": "me", "password": "hush"}}}),
        json!({"archive": upload}),
        json!({"dockerfile": {
            "context": upload, "path": "docker/Dockerfile", "target": "run", "args": {"A": "1"}, "secrets": {"npm": "hush"},
            "credentials": {"registry.example": {"username": "me", "password": "hush"}}, "no_cache": true,
        }}),
        json!({"dockerfile": {"text": "FROM scratch"}}),
        json!({"steps": {"from": {"template": "base"}, "steps": [
            {"step": "copy", "upload": upload, "source": "a", "target": "/a", "mode": "0755"},
            {"step": "run", "command": "make", "user": "root"}, {"step": "env", "env": {"A": "1"}},
            {"step": "workdir", "path": "/srv"}, {"step": "user", "name": "nobody"},
        ]}}),
    ];
    let mut kinds = Vec::new();
    for source in sources {
        let version = host.build("t", json!({"source": source})).await.expect(202);
        let records = host.agent.records();
        let order = &records.builds[version["id"].as_str().unwrap()].order;
        if version["source"] == "checkpoint" {
            assert_eq!(order.disk_gib, 20, "the checkpoint's own");
        }
        let told = serde_json::to_value(&order.source).unwrap();
        assert_eq!(told["kind"], version["source"]);
        kinds.push(version["source"].as_str().unwrap().to_owned());
        if let BuildSource::Steps(steps) = &order.source {
            assert_eq!(
                serde_json::to_value(&steps.from).unwrap()["version"]["version"],
                crate::support::agent::VERSIONS[1]
            );
            assert_eq!(steps.steps.len(), 5);
        }
    }
    assert_eq!(kinds, ["checkpoint", "sandbox", "image", "archive", "dockerfile", "dockerfile", "steps"]);
}

#[tokio::test]
async fn what_cannot_be_built_is_refused_before_the_agent_is_asked() {
    let host = Host::new().await;
    host.template("t").await;
    let fields = [
        (json!({"source": {"image": {"reference": "a b"}}}), "source.image.reference"),
        (json!({"source": {"dockerfile": {}}}), "source.dockerfile.text"),
        (json!({"source": {"dockerfile": {"text": "FROM a", "path": "b"}}}), "source.dockerfile.path"),
        (
            json!({"source": {"dockerfile": {"text": "FROM a", "secrets": {"a": "x".repeat((120 << 10) + 1)}}}}),
            "source.dockerfile.secrets",
        ),
        (json!({"source": {"dockerfile": {"text": "FROM a", "args": {"a b": ""}}}}), "source.dockerfile.args"),
        (
            json!({"source": {"steps": {"from": {"image": {"reference": ""}}, "steps": []}}}),
            "source.steps.from.image.reference",
        ),
        (
            json!({"source": {"steps": {"from": {"template": "base"}, "steps": [{"step": "run", "command": " "}]}}}),
            "source.steps.steps[0].command",
        ),
    ];
    for (body, field) in fields {
        host.build("t", body).await.blames(field);
    }
    let with = |field: &str, value: Value| {
        let mut body = image();
        body[field] = value;
        body
    };
    host.build("t", with("tags", json!(["12"]))).await.blames("tags[0]");
    host.build("t", with("disk_gib", json!(21))).await.blames("disk_gib");
    host.build("t", with("ready_cmd", json!("true"))).await.blames("ready_cmd");
    host.build("t", with("runtime_baseline", json!({"cpu": 3}))).await.blames("cpu");
    host.build("t", with("network", json!({"allow_out": ["not a host"]}))).await.blames("allow_out[0]");
    for source in [
        json!({"checkpoint": "ckp0000000000000000000000"}),
        json!({"sandbox": "sbx0000000000000000000000"}),
        json!({"archive": "upl0000000000000000000000"}),
        json!({"steps": {"from": {"template": "none"}, "steps": []}}),
    ] {
        host.build("t", json!({"source": source})).await.refused(404, "not_found");
    }
    host.build("none", image()).await.refused(404, "not_found");
    assert!(host.agent.records().builds.is_empty());
}

#[tokio::test]
async fn what_another_team_has_cannot_be_built_from() {
    let host = Host::new().await;
    host.template("node").await;
    host.version("node").await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
    let upload = host.upload(b"tar").await;
    host.by_rival("POST", "/v1/templates", Some(json!({"slug": "mine"}))).await.expect(201);
    for source in [
        json!({"checkpoint": checkpoint}),
        json!({"sandbox": sandbox}),
        json!({"archive": upload}),
        json!({"dockerfile": {"text": "FROM a", "context": upload}}),
        json!({"steps": {"from": {"template": "acme/node"}, "steps": []}}),
    ] {
        let body = Some(json!({"source": source}));
        host.by_rival("POST", "/v1/templates/mine/versions", body).await.refused(404, "not_found");
    }
    host.by_rival("DELETE", &format!("/v1/templates/uploads/{upload}"), None).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_build_that_fails_says_why() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    host.agent.fail_build(&id, "step_failed");
    host.sync().await;
    let failed = host.show_version("node", &id).await;
    assert_eq!(failed["state"], "failed");
    assert_eq!(failed["error"], json!({"code": "step_failed", "message": "Step 2 ended with 1", "step": 2}));
    let refused = host.create(json!({"template": "node:1"})).await.refused(409, "invalid_state");
    assert!(refused["message"].as_str().unwrap().contains("Step 2 ended with 1"), "{refused}");
    host.post(&format!("/v1/templates/node/versions/{id}/cancel"), json!({})).await.refused(409, "invalid_state");
    let listed = host.get("/v1/templates/node/versions").await.expect(200);
    assert_eq!(listed, json!({"versions": [failed]}));
}

#[tokio::test]
async fn a_build_is_cancelled() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    let cancel = format!("/v1/templates/node/versions/{id}/cancel");
    let cancelled = host.call("POST", &cancel, &host.write, None).await.expect(202);
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(host.agent.records().builds[&id].build.state, BuildState::Cancelled);
    host.call("POST", &cancel, &host.write, None).await.refused(409, "invalid_state");
}

#[tokio::test]
async fn builds_have_minutes_in_the_quota() {
    let host = Host::with(|config| {
        let quota = config.plans.pro.quota;
        config.plans.pro.quota = Quota { build_minutes: 2, ..quota };
    })
    .await;
    host.template("node").await;
    // Which took 90 seconds.
    host.version("node").await;

    let refused = host.build("node", image()).await.refused(422, "template_quota_exceeded");

    let (limits, usage) = (&refused["quota"]["limits"], &refused["quota"]["usage"]);
    assert_eq!((&limits["build_minutes"], &usage["build_minutes"]), (&json!(2), &json!(2)));
    assert_eq!(usage["retained_bytes"], VERSION_RETAINED);
    host.pass(jiff::SignedDuration::from_hours(31 * 24));
    host.build("node", image()).await.expect(202);
}

#[tokio::test]
async fn builds_under_way_count_with_what_they_have_taken_and_may_yet_take() {
    let host = Host::with(|config| {
        let quota = config.plans.pro.quota;
        config.plans.pro.quota = Quota { build_minutes: 100, ..quota };
    })
    .await;
    host.template("node").await;
    // Each may take an hour.
    let first = host.building("node").await;
    host.building("node").await;
    host.build("node", image()).await.refused(422, "template_quota_exceeded");
    // It has taken 90 seconds so far.
    host.agent.advance(&first, BuildState::Building);
    host.sync().await;
    assert_eq!(host.usage().await["build_minutes"], 2);

    host.agent.finish_build(&first);
    host.sync().await;

    host.build("node", image()).await.expect(202);
}

#[tokio::test]
async fn a_team_has_so_many_builds_under_way() {
    let host = Host::new().await;
    host.template("node").await;
    for _ in 0..sandpiper_api::store::templates::versions::MOST_UNDER_WAY {
        host.building("node").await;
    }
    host.build("node", image()).await.refused(429, "too_many_builds");
    let versions = host.get("/v1/templates/node/versions?limit=15").await.expect(200);
    assert_eq!(versions["versions"][0]["number"], 20);
    let token = versions["next_token"].as_str().unwrap();
    let rest = host.get(&format!("/v1/templates/node/versions?limit=15&next_token={token}")).await.expect(200);
    assert_eq!((rest["versions"].as_array().unwrap().len(), &rest["versions"][4]["number"]), (5, &json!(1)));
}

#[tokio::test]
async fn a_repeated_request_builds_one_version() {
    let host = Host::new().await;
    host.template("node").await;
    let build = || {
        let request = request("POST", "/v1/templates/node/versions", &host.write, Some(image()));
        with_header(request, "idempotency-key", "k")
    };
    let first = host.send(build()).await.expect(202);
    assert_eq!(host.send(build()).await.expect(202), first);
    assert_eq!(host.agent.records().builds.len(), 1);
}

#[tokio::test]
async fn what_the_agent_refuses_was_never_there() {
    let host = Host::new().await;
    host.template("node").await;
    host.agent.records().refuse = Some((422, "build_unavailable"));
    host.build("node", image()).await.refused(422, "build_unavailable");
    assert_eq!(host.get("/v1/templates/node/versions").await.expect(200), json!({"versions": []}));
    host.agent.records().refuse = None;
    assert_eq!(host.build("node", image()).await.expect(202)["number"], 1);
}

#[tokio::test]
async fn the_agent_is_asked_again_when_it_was_away() {
    let mut host = Host::new().await;
    host.template("node").await;
    host.agent.stop();
    let secret = json!({"source": {"dockerfile": {"text": "FROM a", "secrets": {"npm": "hunter2"}}}});
    let made = host.build("node", secret).await.expect(202);
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(made["state"], "queued");
    let sealed: String =
        sqlx::query_scalar("SELECT sealed_order FROM template_versions WHERE sealed_order IS NOT NULL")
            .fetch_one(host.database.read())
            .await
            .unwrap();
    assert!(!sealed.contains("hunter2") && sealed.starts_with("v1:"));
    host.agent.resume();

    let host = host.restart().await;
    host.app.store.processes.outlive_others().await.unwrap();
    host.sync().await;

    let BuildSource::Dockerfile(told) = host.agent.records().builds[&id].order.source.clone() else { panic!() };
    assert_eq!(told.secrets.0["npm"], "hunter2");
    // The agent has it now: there is no need to keep it.
    let kept = sqlx::query("SELECT 1 FROM template_versions WHERE sealed_order IS NOT NULL");
    assert!(kept.fetch_optional(host.database.read()).await.unwrap().is_none());
    host.agent.finish_build(&id);
    host.sync().await;
    assert_eq!(host.show_version("node", &id).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_that_dies_while_it_asks_the_agent_leaves_a_build_that_goes_on() {
    let host = Host::new().await;
    host.template("node").await;
    host.agent.hold();
    let order =
        with_header(request("POST", "/v1/templates/node/versions", &host.write, Some(image())), "idempotency-key", "k");
    let waiting = tokio::spawn(tower::ServiceExt::oneshot(host.router(), order));
    let list = async || host.get("/v1/templates/node/versions").await.expect(200);
    eventually("the row is there", async || list().await["versions"][0]["state"] == "queued").await;

    waiting.abort();
    let host = host.restart().await;
    host.agent.admit(1000);
    host.app.store.processes.outlive_others().await.unwrap();
    let repeated = request("POST", "/v1/templates/node/versions", &host.write, Some(image()));
    let made = host.send(with_header(repeated, "idempotency-key", "k")).await.expect(202);
    host.sync().await;

    let listed = host.get("/v1/templates/node/versions").await.expect(200);
    assert_eq!(listed["versions"].as_array().unwrap().len(), 1);
    assert_eq!(listed["versions"][0]["id"], made["id"]);
    assert_eq!(host.agent.records().builds.len(), 1);
}

#[tokio::test]
async fn nothing_stays_under_way_that_the_agent_has_lost_or_refuses() {
    let mut host = Host::new().await;
    host.template("node").await;
    let lost = host.building("node").await;
    host.agent.records().builds.clear();
    host.sync().await;
    let shown = host.show_version("node", &lost).await;
    assert_eq!((&shown["state"], &shown["error"]["code"]), (&json!("failed"), &json!("host_failed")));

    host.agent.stop();
    let refused = host.building("node").await;
    let cancelled = host.building("node").await;
    let cancel = format!("/v1/templates/node/versions/{cancelled}/cancel");
    assert_eq!(host.call("POST", &cancel, &host.write, None).await.expect(202)["state"], "queued");
    host.agent.resume();
    host.agent.records().refuse = Some((422, "build_unavailable"));
    host.sync().await;
    let shown = host.show_version("node", &refused).await;
    assert_eq!((&shown["state"], &shown["error"]["code"]), (&json!("failed"), &json!("build_unavailable")));
    assert_eq!(host.show_version("node", &cancelled).await["state"], "cancelled");
    assert!(host.agent.records().builds.is_empty());
}

#[tokio::test]
async fn what_is_cancelled_while_others_are_begun_again_is_not_begun() {
    let mut host = Host::new().await;
    host.template("node").await;
    host.agent.stop();
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(host.building("node").await);
    }
    host.agent.resume();
    host.agent.hold();
    ids.sort();
    let app = host.app.clone();
    let round = tokio::spawn(async move { Synchronizer::new(app).round().await });
    // It has read both rows, and waits for the agent to begin the first.
    eventually("the first is being begun", async || host.app.in_flight.contains(&ids[0])).await;

    let cancel = format!("/v1/templates/node/versions/{}/cancel", ids[1]);
    let cancelled = host.call("POST", &cancel, &host.write, None).await.expect(202);
    host.agent.admit(1000);
    round.await.unwrap().unwrap();

    assert_eq!(cancelled["state"], "cancelled");
    let begun: Vec<String> = host.agent.records().builds.keys().cloned().collect();
    assert_eq!(begun, ids[..1]);
}

#[tokio::test]
async fn no_secret_of_a_build_is_in_the_database_the_audit_or_an_error() {
    let host = Host::new().await;
    host.template("node").await;
    let credentials = json!({"username": "me", "password": "hunter2"});
    let body = json!({"source": {"image": {"reference": "node", "credentials": credentials}}});
    let made = host.build("node", body).await.expect(202);
    assert!(!made.to_string().contains("hunter2"));
    let broken = json!({"source": {"image": {"reference": "node", "credentials": credentials}}, "tags": ["1"]});
    let answer = host.build("node", broken).await;
    assert!(!answer.text.contains("hunter2"));
    assert!(!format!("{:?}", host.app.store.audit.newest(None, 100).await.unwrap()).contains("hunter2"));
    assert!(!host.stores("hunter2").await);
}
