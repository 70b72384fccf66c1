//! Templates: whose they are, and who sees them. How versions are built is in `builds`, their logs in `logs`, files for them in
//! `uploads`.

mod builds;
mod logs;
mod uploads;

use sandpiper_api::plan::Quota;
use serde_json::{Value, json};

use crate::support::{Answer, Host, request, with_header};

impl Host {
    /// A new template of team `acme`.
    pub(crate) async fn template(&self, slug: &str) -> Value {
        self.post("/v1/templates", json!({"slug": slug})).await.expect(201)
    }

    /// A request to build a version.
    pub(crate) async fn build(&self, slug: &str, body: Value) -> Answer {
        self.post(&format!("/v1/templates/{slug}/versions"), body).await
    }

    /// The id of a version of a template of team `acme`, which is being built.
    pub(crate) async fn building(&self, slug: &str) -> String {
        let source = json!({"image": {"reference": "registry.example/node:22"}});
        let version = self.build(slug, json!({"source": source})).await.expect(202);
        version["id"].as_str().unwrap().to_owned()
    }

    /// The id of a version that is ready.
    pub(crate) async fn version(&self, slug: &str) -> String {
        let id = self.building(slug).await;
        self.agent.finish_build(&id);
        self.sync().await;
        id
    }

    pub(crate) async fn by_rival(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.call(method, path, &self.foreign, body).await
    }

    pub(crate) async fn show_version(&self, slug: &str, reference: &str) -> Value {
        self.get(&format!("/v1/templates/{slug}/versions/{reference}")).await.expect(200)
    }
}

#[tokio::test]
async fn a_template_is_made_listed_shown_changed_and_deleted() {
    let host = Host::new().await;
    host.sync().await;
    let body = json!({"slug": "node", "team": "acme", "description": "Node 22"});
    let made = host.post("/v1/templates", body).await.expect(201);
    assert!(made["id"].as_str().unwrap().starts_with("tpl"), "{made}");
    assert_eq!(
        (&made["slug"], &made["team"], &made["visibility"]),
        (&json!("node"), &json!("acme"), &json!("private"))
    );
    assert_eq!((&made["description"], &made["latest_version"]), (&json!("Node 22"), &Value::Null));
    assert_eq!(host.get("/v1/templates/node").await.expect(200), made);
    assert_eq!(host.get(&format!("/v1/templates/{}", made["id"].as_str().unwrap())).await.expect(200), made);

    let first_page = host.get("/v1/templates?limit=1").await.expect(200);
    assert_eq!(first_page["templates"][0]["slug"], "base");
    assert_eq!(first_page["templates"][0]["team"], Value::Null);
    let token = first_page["next_token"].as_str().unwrap();
    let last_page = host.get(&format!("/v1/templates?limit=1&next_token={token}")).await.expect(200);
    assert_eq!(last_page, json!({"templates": [made]}));

    let change = json!({"visibility": "public", "description": ""});
    let changed = host.call("PATCH", "/v1/templates/node", &host.write, Some(change)).await.expect(200);
    assert_eq!((&changed["visibility"], &changed["description"]), (&json!("public"), &json!("")));
    host.call("DELETE", "/v1/templates/node", &host.write, None).await.expect(204);
    host.get("/v1/templates/node").await.refused(404, "not_found");
    host.template("node").await;
}

#[tokio::test]
async fn a_slug_is_one_templates_and_plain() {
    let host = Host::new().await;
    host.template("node").await;
    host.post("/v1/templates", json!({"slug": "node"})).await.refused(409, "conflict");
    host.by_rival("POST", "/v1/templates", Some(json!({"slug": "node"}))).await.expect(201);
    for slug in ["", "Node", "a/b", "a:b", "uploads"] {
        host.post("/v1/templates", json!({"slug": slug})).await.blames("slug");
    }
    host.post("/v1/templates", json!({"slug": "x", "visibility": "secret"})).await.blames("visibility");
    host.post("/v1/templates", json!({"slug": "x", "team": "rival"})).await.refused(404, "not_found");
}

#[tokio::test]
async fn another_teams_template_is_there_once_it_is_public_and_never_to_be_changed() {
    let host = Host::new().await;
    host.template("node").await;
    let version = host.version("node").await;
    let private = host.by_rival("GET", "/v1/templates/acme%2Fnode", None).await.refused(404, "not_found");
    let absent = host.by_rival("GET", "/v1/templates/acme%2Fnone", None).await.refused(404, "not_found");
    assert_eq!(private["message"].as_str().unwrap().replace("node", "none"), absent["message"].as_str().unwrap());
    host.by_rival("POST", "/v1/sandboxes", Some(json!({"template": "acme/node"}))).await.refused(404, "not_found");

    let public = Some(json!({"visibility": "public"}));
    host.call("PATCH", "/v1/templates/node", &host.write, public.clone()).await.expect(200);

    let seen = host.by_rival("GET", "/v1/templates/acme%2Fnode", None).await.expect(200);
    assert_eq!((&seen["slug"], &seen["latest_version"]["id"]), (&json!("acme/node"), &json!(version)));
    let listed = host.by_rival("GET", "/v1/templates", None).await.expect(200);
    assert!(listed["templates"].as_array().unwrap().contains(&seen), "{listed}");
    let sandbox = host.by_rival("POST", "/v1/sandboxes", Some(json!({"template": "acme/node:1"}))).await.expect(201);
    assert_eq!((&sandbox["template"], &sandbox["template_version"]), (&json!("acme/node"), &json!(version)));
    // A slug alone is never another team's, so that nobody can put a template in the way.
    host.by_rival("POST", "/v1/sandboxes", Some(json!({"template": "node"}))).await.refused(404, "not_found");
    for (method, path) in [
        ("PATCH", "/v1/templates/acme%2Fnode"),
        ("DELETE", "/v1/templates/acme%2Fnode"),
        ("DELETE", "/v1/templates/acme%2Fnode/versions/1"),
        ("POST", "/v1/templates/acme%2Fnode/versions/1/cancel"),
    ] {
        let body = (method == "PATCH").then(|| public.clone().unwrap());
        host.by_rival(method, path, body).await.refused(403, "not_owner");
    }
    host.by_rival("GET", "/v1/templates/acme%2Fnode/versions/1/logs", None).await.refused(403, "not_owner");
    // Nor are versions seen that cannot be started.
    host.building("node").await;
    let versions = host.by_rival("GET", "/v1/templates/acme%2Fnode/versions", None).await.expect(200);
    assert_eq!(versions["versions"].as_array().unwrap().len(), 1);
    host.by_rival("GET", "/v1/templates/acme%2Fnode/versions/2", None).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_teams_own_template_stands_in_front_of_the_hosts() {
    let host = Host::new().await;
    host.sync().await;
    host.call("DELETE", "/v1/templates/base", &host.write, None).await.refused(403, "not_owner");
    host.template("base").await;
    let refused = host.create(json!({"template": "base"})).await.refused(409, "invalid_state");
    assert!(refused["message"].as_str().unwrap().contains("/v1/templates/base/versions"), "{refused}");

    let version = host.version("base").await;

    assert_eq!(host.create(json!({"template": "base"})).await.expect(201)["template_version"], version);
    let foreign = host.by_rival("POST", "/v1/sandboxes", Some(json!({"template": "base"}))).await.expect(201);
    assert_ne!(foreign["template_version"], version);
}

#[tokio::test]
async fn templates_have_a_quota_of_their_own() {
    let host = Host::with(|config| {
        let quota = config.plans.pro.quota;
        config.plans.pro.quota = Quota { templates: 1, ..quota };
    })
    .await;
    host.template("one").await;

    let refused = host.post("/v1/templates", json!({"slug": "two"})).await.refused(422, "template_quota_exceeded");

    assert_eq!(
        (&refused["quota"]["limits"]["templates"], &refused["quota"]["usage"]["templates"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(refused["quota"]["reservation"]["templates"], 1);
    // What is there already is told first.
    host.post("/v1/templates", json!({"slug": "one"})).await.refused(409, "conflict");
    host.call("DELETE", "/v1/templates/one", &host.write, None).await.expect(204);
    host.template("two").await;
}

#[tokio::test]
async fn a_repeated_request_makes_one_template() {
    let host = Host::new().await;
    let create = || {
        let request = request("POST", "/v1/templates", &host.write, Some(json!({"slug": "sbx"})));
        with_header(request, "idempotency-key", "k")
    };
    let first = host.send(create()).await.expect(201);
    let again = host.send(create()).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(201), first);
}

#[tokio::test]
async fn what_is_needed_is_not_deleted() {
    let host = Host::new().await;
    host.template("node").await;
    let version = host.version("node").await;
    let sandbox = host.create(json!({"template": "node"})).await.expect(201)["id"].as_str().unwrap().to_owned();
    let checkpoint = host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
    let delete = async |path: String| host.call("DELETE", &path, &host.write, None).await;
    let of_version = "/v1/templates/node/versions/1";
    for need in [&sandbox, &checkpoint] {
        for path in [of_version, "/v1/templates/node"] {
            let refused = delete(path.to_owned()).await.refused(409, "template_in_use");
            assert!(refused["message"].as_str().unwrap().contains(need.as_str()), "{refused}");
        }
        let kind = if need == &sandbox { "sandboxes" } else { "checkpoints" };
        delete(format!("/v1/{kind}/{need}")).await.expect(204);
    }
    let steps = json!({"steps": {"from": {"template": "node:1"}, "steps": [{"step": "run", "command": "true"}]}});
    host.template("more").await;
    let second = host.build("more", json!({"source": steps})).await.expect(202)["id"].as_str().unwrap().to_owned();
    delete(of_version.to_owned()).await.refused(409, "template_in_use");
    delete("/v1/templates/more".to_owned()).await.refused(409, "template_in_use");
    host.agent.fail_build(&second, "step_failed");
    host.sync().await;

    delete(of_version.to_owned()).await.expect(204);

    host.get(of_version).await.refused(404, "not_found");
    host.create(json!({"template": "node:1"})).await.refused(404, "not_found");
    crate::support::eventually("the agent removes it", async || {
        host.agent.records().removed_versions.contains(&version)
    })
    .await;
    // Numbers are not given again.
    assert_eq!(host.show_version("node", &host.building("node").await).await["number"], 2);
}

#[tokio::test]
async fn what_was_deleted_while_the_agent_was_away_is_removed_when_it_is_back() {
    let mut host = Host::new().await;
    host.template("node").await;
    let version = host.version("node").await;
    host.agent.stop();
    host.call("DELETE", "/v1/templates/node/versions/1", &host.write, None).await.expect(204);
    crate::support::eventually("it was tried", async || host.app.in_flight.is_empty()).await;
    host.agent.resume();
    assert!(host.agent.records().templates.iter().any(|one| one.id == version));

    host.sync().await;

    crate::support::eventually("the agent removes it", async || {
        !host.agent.records().templates.iter().any(|one| one.id == version)
    })
    .await;
}

#[tokio::test]
async fn names_that_lead_nowhere_have_the_agent_asked_once_for_all_and_seldom() {
    let host = Host::new().await;
    host.sync().await;
    let lists = || host.agent.records().template_lists;
    let before = lists();
    let began = std::time::Instant::now();
    let creates = (0..20).map(|_| host.create(json!({"template": "none"})));

    for answer in futures_util::future::join_all(creates).await {
        answer.refused(404, "not_found");
    }

    let most = u32::try_from(began.elapsed().as_secs()).unwrap() + 2;
    assert!((1..=most).contains(&(lists() - before)), "{} in {:?}", lists() - before, began.elapsed());
    // What came in the meantime is found.
    let mut new = host.agent.records().templates[1].clone();
    (new.id, new.slug) = ("ver0000000000000000000007".into(), "none".into());
    host.agent.records().templates.push(new);
    host.create(json!({"template": "none"})).await.expect(201);
}
