//! Builds of templates as the SDKs ask for them: announced, files sent, begun, followed; then tags, lists, names.

use axum::body::Body;
use axum::http::Request;
use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::template::{BuildSource, BuildState, LogLevel};
use serde_json::{Value, json};

use super::sdk_request;
use crate::support::{Answer, Host};

/// What is announced, as the SDK reads it.
struct Build {
    template: String,
    build: String,
}

impl Build {
    fn path(&self, rest: &str) -> String {
        format!("/templates/{}/builds/{}{rest}", self.template, self.build)
    }
}

impl Host {
    async fn announce(&self, body: Value) -> Build {
        let announced = self.sdk("POST", "/v3/templates", Some(body)).await.expect(202);
        let text = |field: &str| announced[field].as_str().unwrap().to_owned();
        Build { template: text("templateID"), build: text("buildID") }
    }

    async fn begin(&self, build: &Build, body: Value) -> Answer {
        self.sdk("POST", &format!("/v2{}", build.path("")), Some(body)).await
    }

    async fn build_status(&self, build: &Build, offset: usize) -> Value {
        self.sdk("GET", &build.path(&format!("/status?logsOffset={offset}")), None).await.expect(200)
    }

    /// The id of the only build at the agent.
    fn only_build(&self) -> String {
        self.agent.records().builds.keys().next().unwrap().clone()
    }

    async fn put_file(&self, url: &str, content: &'static str) -> Answer {
        let path = url.strip_prefix("http://api.example").unwrap();
        self.send(Request::put(path).body(Body::from(content)).unwrap()).await
    }

    async fn file_link(&self, build: &Build, hash: &str) -> Value {
        let path = format!("/templates/{}/files/{hash}", build.template);
        let mut request = sdk_request("GET", &path, &self.write, None);
        request.headers_mut().insert("host", "api.example".parse().unwrap());
        self.send(request).await.expect(201)
    }
}

#[tokio::test]
async fn a_template_is_built_as_the_sdks_do_and_started_from_by_its_name_and_tags() {
    let host = Host::new().await;
    let asked = json!({"name": "tool:v1", "tags": ["beta"], "cpuCount": 2, "memoryMB": 1024});
    let announced = host.sdk("POST", "/v3/templates", Some(asked)).await.expect(202);
    assert_eq!((&announced["names"], &announced["aliases"]), (&json!(["acme/tool"]), &json!(["tool"])));
    assert_eq!((&announced["tags"], &announced["public"]), (&json!(["beta", "v1"]), &json!(false)));
    let text = |field: &str| announced[field].as_str().unwrap().to_owned();
    let build = Build { template: text("templateID"), build: text("buildID") };
    assert_eq!(host.build_status(&build, 0).await["status"], "waiting");

    let link = host.file_link(&build, "ab12").await;
    assert_eq!(link["present"], false);
    host.put_file(link["url"].as_str().unwrap(), "tar").await.expect(200);
    let again = host.file_link(&build, "ab12").await;
    // With where it may be sent all the same.
    assert!(again["present"] == true && again["url"].is_string(), "{again}");
    let body = json!({
        "fromImage": "registry.example/python:3.12", "force": false, "startCmd": "python server.py", "readyCmd": "true",
        "fromImageRegistry": {"type": "registry", "username": "me", "password": "hush"},
        "steps": [
            {"type": "COPY", "args": ["app", "/app", "", "0755"], "filesHash": "ab12", "force": false, "forceUpload": true,
             "resolveSymlinks": false, "gzip": true},
            {"type": "RUN", "args": ["pip install x", "root"], "force": true},
            {"type": "ENV", "args": ["A", "1", "B", ""]}, {"type": "WORKDIR", "args": ["/app"]},
            {"type": "USER", "args": ["user"]},
        ],
    });
    host.begin(&build, body.clone()).await.expect(202);
    host.begin(&build, body).await.expect(202);
    let id = host.only_build();
    {
        let records = host.agent.records();
        let order = &records.builds[&id].order;
        assert_eq!((records.builds.len(), order.baseline.cpu, order.baseline.memory_mb), (1, 2, 1024));
        let BuildSource::Steps(steps) = &order.source else { panic!("{order:?}") };
        let told = serde_json::to_value(steps).unwrap();
        assert_eq!(told["from"]["image"]["credentials"]["username"], "me");
        assert_eq!((&told["steps"][0]["mode"], &told["steps"][0]["source"]), (&json!("0755"), &json!("app")));
        assert!(records.uploads.contains_key(told["steps"][0]["upload"].as_str().unwrap()));
        assert_eq!((&told["steps"][1]["user"], &told["steps"][1]["force"]), (&json!("root"), &json!(true)));
        assert_eq!(told["steps"][2]["env"], json!({"A": "1", "B": ""}));
    }
    host.agent.advance(&id, BuildState::Building);
    host.agent.print(&id, "one");
    host.agent.print(&id, "two");
    host.sync().await;
    let status = host.build_status(&build, 1).await;
    assert_eq!((&status["status"], &status["logEntries"][0]["message"]), (&json!("building"), &json!("two")));
    assert_eq!((&status["logEntries"][0]["level"], &status["logs"]), (&json!("info"), &json!(["two"])));
    assert_eq!((&status["buildID"], &status["templateID"]), (&json!(build.build), &json!(build.template)));
    host.agent.finish_build(&id);
    host.sync().await;
    assert_eq!(host.build_status(&build, 2).await["status"], "ready");
    let lines = host.sdk("GET", &build.path("/logs?limit=1"), None).await.expect(200);
    assert_eq!(lines["logs"].as_array().unwrap().len(), 1);

    for template in ["tool", "tool:v1", "acme/tool:beta", &build.template] {
        let created = host.sdk_create(json!({"templateID": template})).await;
        let sandbox = host.get(&format!("/v1/sandboxes/{}", super::id(&created))).await.expect(200);
        assert_eq!(sandbox["template_version"], id, "{template}");
    }
    host.sdk("POST", "/v2/sandboxes", Some(json!({"templateID": "tool:none"}))).await.fails(404);
}

#[tokio::test]
async fn a_name_alone_stands_for_what_was_built_without_a_tag() {
    let host = Host::new().await;
    for name in ["tool", "tool:next"] {
        let build = host.announce(json!({"name": name})).await;
        host.begin(&build, json!({"fromTemplate": "base", "readyCmd": "true"})).await.expect(202);
    }
    let ids: Vec<String> = host.agent.records().builds.keys().cloned().collect();
    for id in &ids {
        host.agent.finish_build(id);
    }
    host.sync().await;
    let version = async |template: &str| {
        let created = host.sdk_create(json!({"templateID": template})).await;
        let shown = host.get(&format!("/v1/sandboxes/{}", super::id(&created))).await.expect(200);
        shown["template_version"].as_str().unwrap().to_owned()
    };
    assert_eq!((version("tool").await, version("tool:next").await), (ids[0].clone(), ids[1].clone()));
    assert_eq!(version("tool:latest").await, ids[1]);
    let start = host.agent.records().builds[&ids[0]].order.start.clone().unwrap();
    assert_eq!((start.command.as_str(), start.ready.as_deref()), ("true", Some("true")));
}

#[tokio::test]
async fn a_build_that_fails_is_an_error_with_a_reason() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool"})).await;
    host.begin(&build, json!({"fromImage": "python", "steps": []})).await.expect(202);
    host.agent.fail_build(&host.only_build(), "step_failed");
    host.sync().await;
    let status = host.build_status(&build, 0).await;
    assert_eq!(status["status"], "error");
    assert_eq!(status["reason"], json!({"message": "Step 2 ended with 1", "step": "2", "logEntries": []}));
}

#[tokio::test]
async fn what_cannot_be_built_is_said_at_once() {
    let host = Host::new().await;
    host.sdk("POST", "/v3/templates", Some(json!({}))).await.fails(400);
    host.sdk("POST", "/v3/templates", Some(json!({"name": "Not A Name"}))).await.fails(400);
    host.sdk("POST", "/v3/templates", Some(json!({"name": "rival/tool"}))).await.fails(400);
    host.sdk("POST", "/v3/templates", Some(json!({"name": "tool", "cpuCount": 3}))).await.fails(400);
    let build = host.announce(json!({"name": "tool"})).await;
    for body in [
        json!({}),
        json!({"fromImage": "a", "fromTemplate": "base"}),
        json!({"fromImage": "a", "fromImageRegistry": {"type": "aws", "awsAccessKeyId": "a", "awsSecretAccessKey": "b",
                                                       "awsRegion": "c"}}),
        json!({"fromImage": "a", "steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": "none"}]}),
        json!({"fromImage": "a", "steps": [{"type": "ENV", "args": ["a"]}]}),
        json!({"fromImage": "a", "steps": [{"type": "EXPOSE", "args": ["80"]}]}),
    ] {
        host.begin(&build, body).await.fails(400);
    }
    host.begin(&build, json!({"fromTemplate": "none"})).await.fails(404);
    let other = Build { build: "00000000-0000-0000-0000-000000000000".into(), template: build.template };
    host.begin(&other, json!({"fromImage": "a"})).await.fails(404);
    host.sdk("GET", &other.path("/status"), None).await.fails(404);
    assert!(host.agent.records().builds.is_empty());
}

#[tokio::test]
async fn a_link_is_for_one_file_and_for_a_while() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool"})).await;
    let url = host.file_link(&build, "ab12").await["url"].as_str().unwrap().to_owned();
    host.put_file(&url.replace("ab12", "ab13"), "x").await.fails(401);
    host.put_file(&url[..url.len() - 4], "x").await.fails(401);
    host.put_file(url.split('?').next().unwrap(), "x").await.fails(401);
    host.pass(SignedDuration::from_mins(61));
    host.put_file(&url, "x").await.fails(401);
    let url = host.file_link(&build, "ab12").await["url"].as_str().unwrap().to_owned();
    for key in host.app.store.keys.all().await.unwrap() {
        host.app.store.keys.revoke(&key.id, None, jiff::Timestamp::now()).await.unwrap();
    }
    host.put_file(&url, "x").await.fails(401);
    assert!(host.agent.records().uploads.is_empty());
}

#[tokio::test]
async fn templates_are_listed_shown_published_and_deleted() {
    let host = Host::new().await;
    host.sync().await;
    let build = host.announce(json!({"name": "tool"})).await;
    host.begin(&build, json!({"fromImage": "python"})).await.expect(202);
    host.agent.finish_build(&host.only_build());
    host.sync().await;
    let listed = host.sdk("GET", "/templates?teamID=acme", None).await.expect(200);
    let one = &listed[0];
    assert_eq!((listed.as_array().unwrap().len(), &one["templateID"]), (1, &json!(build.template)), "not the host's");
    assert_eq!(
        (&one["buildID"], &one["buildStatus"], &one["cpuCount"]),
        (&json!(build.build), &json!("ready"), &json!(1))
    );
    assert_eq!(host.sdk("GET", "/v2/templates?limit=5", None).await.expect(200), listed);
    let shown = host.sdk("GET", "/templates/tool", None).await.expect(200);
    assert_eq!((&shown["aliases"], &shown["builds"][0]["buildID"]), (&json!(["tool"]), &json!(build.build)));

    let exists = host.sdk("GET", "/templates/aliases/tool", None).await.expect(200);
    assert_eq!(exists, json!({"templateID": build.template, "public": false}));
    host.sdk("GET", "/templates/aliases/none", None).await.fails(404);
    let published = host.sdk("PATCH", "/v2/templates/tool", Some(json!({"public": true}))).await.expect(200);
    assert_eq!(published, json!({"names": ["acme/tool"]}));
    let request = sdk_request("GET", "/templates/aliases/acme%2Ftool", &host.foreign, None);
    assert_eq!(host.send(request).await.expect(200)["public"], true);
    let request = sdk_request("POST", "/v2/sandboxes", &host.foreign, Some(json!({"templateID": "acme/tool"})));
    let used = host.send(request).await.expect(201);
    host.sdk("DELETE", "/templates/tool", None).await.fails(409);
    host.send(sdk_request("DELETE", &format!("/sandboxes/{}", super::id(&used)), &host.foreign, None))
        .await
        .expect(204);
    host.sdk("DELETE", &format!("/templates/{}", build.template), None).await.expect(204);
    host.sdk("GET", "/templates/tool", None).await.fails(404);
}

#[tokio::test]
async fn a_deleted_template_takes_what_was_announced_of_it_along() {
    let host = Host::new().await;
    host.announce(json!({"name": "tool"})).await;
    let announced = async || {
        let count = sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM announced_versions");
        count.fetch_one(host.database.read()).await.unwrap()
    };
    assert_eq!(announced().await, 1);
    host.sdk("DELETE", "/templates/tool", None).await.expect(204);
    assert_eq!(announced().await, 0);
}

#[tokio::test]
async fn tags_are_given_listed_and_removed() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool:v1"})).await;
    host.begin(&build, json!({"fromImage": "python"})).await.expect(202);
    let assign = json!({"target": "tool:v1", "tags": ["stable", "prod"]});
    host.sdk("POST", "/templates/tags", Some(assign.clone())).await.fails(404);
    host.agent.finish_build(&host.only_build());
    host.sync().await;

    let assigned = host.sdk("POST", "/templates/tags", Some(assign)).await.expect(201);
    assert_eq!(assigned, json!({"tags": ["stable", "prod"], "buildID": build.build}));
    let names = async || {
        let listed = host.sdk("GET", "/templates/tool/tags", None).await.expect(200);
        let name = |one: &Value| one["tag"].as_str().unwrap().to_owned();
        listed.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["prod", "stable", "v1"]);
    let remove = json!({"name": "tool", "tags": ["prod"]});
    host.sdk("DELETE", "/templates/tags", Some(remove.clone())).await.expect(204);
    host.sdk("DELETE", "/templates/tags", Some(remove)).await.fails(404);
    assert_eq!(names().await, ["stable", "v1"]);
    host.sdk("POST", "/templates/tags", Some(json!({"target": "tool:v1", "tags": ["7"]}))).await.fails(400);
    host.sdk("POST", "/templates/tags", Some(json!({"target": "base", "tags": ["x"]}))).await.fails(403);
    for tags in [json!([]), json!(["7"]), json!(vec!["x"; 5000])] {
        host.sdk("DELETE", "/templates/tags", Some(json!({"name": "tool", "tags": tags}))).await.fails(400);
    }
}

#[tokio::test]
async fn a_template_has_so_many_tags() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool:v1"})).await;
    host.begin(&build, json!({"fromImage": "python"})).await.expect(202);
    host.agent.finish_build(&host.only_build());
    host.sync().await;
    let most = usize::try_from(sandpiper_api::store::templates::versions::MOST_TAGS).unwrap();
    let names: Vec<String> = (1..most).map(|number| format!("t{number}")).collect();
    let assign = async |tags: &[String]| {
        host.sdk("POST", "/templates/tags", Some(json!({"target": "tool:v1", "tags": tags}))).await
    };
    for some in names.chunks(16) {
        assign(some).await.expect(201);
    }

    assign(&["one-more".to_owned()]).await.fails(400);

    let build = host.announce(json!({"name": "tool:one-more"})).await;
    host.begin(&build, json!({"fromImage": "python"})).await.fails(400);
    // Those that it has are given again all the same.
    assign(&names[..1]).await.expect(201);
    assert_eq!(host.sdk("GET", "/templates/tool/tags", None).await.expect(200).as_array().unwrap().len(), most);
}

#[tokio::test]
async fn a_build_that_was_deleted_is_not_waiting_and_cannot_be_begun_again() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool"})).await;
    host.begin(&build, json!({"fromImage": "python"})).await.expect(202);
    let id = host.only_build();
    host.agent.finish_build(&id);
    host.sync().await;
    host.call("DELETE", &format!("/v1/templates/tool/versions/{id}"), &host.write, None).await.expect(204);

    host.sdk("GET", &build.path("/status"), None).await.fails(404);
    host.sdk("GET", &build.path("/logs"), None).await.fails(404);
    host.begin(&build, json!({"fromImage": "python"})).await.fails(409);
}

#[tokio::test]
async fn lines_are_those_from_a_time_on_and_of_a_level() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool"})).await;
    host.begin(&build, json!({"fromImage": "python"})).await.expect(202);
    let id = host.only_build();
    host.agent.advance(&id, BuildState::Building);
    // Every tenth is a warning.
    for number in 0..300_i64 {
        let level = if number % 10 == 0 { LogLevel::Warn } else { LogLevel::Info };
        host.agent.say(&id, Timestamp::from_millisecond(1_000_000 + number).unwrap(), level, &number.to_string());
    }
    host.sync().await;
    let said = |lines: &Value| {
        let text = |line: &Value| line["message"].as_str().unwrap().to_owned();
        lines.as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    let logs = async |query: &str| {
        said(&host.sdk("GET", &build.path(&format!("/logs?{query}")), None).await.expect(200)["logs"])
    };
    assert_eq!(logs("cursor=1000297").await, ["297", "298", "299"]);
    assert_eq!(logs("cursor=0&limit=2").await, ["0", "1"]);
    assert_eq!(logs("cursor=1000275&level=warn").await, ["280", "290"]);
    assert_eq!(logs("cursor=2000000").await, [""; 0]);
    assert_eq!(logs("limit=0").await, [""; 0]);

    // As the SDKs do: on by as many as were shown.
    let mut warnings = Vec::new();
    loop {
        let query = format!("/status?logsOffset={}&limit=20&level=warn", warnings.len());
        let shown = said(&host.sdk("GET", &build.path(&query), None).await.expect(200)["logEntries"]);
        if shown.is_empty() {
            break;
        }
        warnings.extend(shown);
    }
    assert_eq!(warnings, (0..30).map(|tenth| (tenth * 10).to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_file_that_was_sent_again_takes_the_place_of_the_first() {
    let host = Host::new().await;
    let build = host.announce(json!({"name": "tool"})).await;
    for _ in 0..2 {
        let url = host.file_link(&build, "ab12").await["url"].as_str().unwrap().to_owned();
        host.put_file(&url, "tar").await.expect(200);
    }
    assert_eq!(host.agent.records().uploads.len(), 2);

    host.pass(SignedDuration::from_mins(2));
    host.sync().await;

    assert_eq!(host.agent.records().uploads.len(), 1);
    assert_eq!(host.file_link(&build, "ab12").await["present"], true);
}
