//! Teams that operators have disabled: nothing of them runs or is reached, nothing is lost, and others go on.

use jiff::SignedDuration;
use sandpiper_accounts::Role;
use sandpiper_api::orchestration::disabled::Stopper;
use sandpiper_api::orchestration::sync::Synchronizer;
use sandpiper_protocol::template::BuildState;
use serde_json::{Value, json};

use crate::support::shop::operator_key;
use crate::support::{Answer, Host, request, with_header};
use crate::team_webhooks::Stage;
use crate::webhooks::receiver::Receiver;

const WHY: &str = "The invoice of May is not paid";

impl Host {
    /// Has an operator disable a team.
    pub(crate) async fn disable(&self, team: &str) {
        let operator = operator_key(self).await;
        let path = format!("/operator/v1/teams/{team}/disable");
        let disabled = self.call("POST", &path, &operator, Some(json!({"reason": WHY}))).await.expect(200);
        assert_eq!(disabled["disabled"]["reason"], WHY);
    }

    pub(crate) async fn enable(&self, team: &str) {
        let operator = operator_key(self).await;
        let path = format!("/operator/v1/teams/{team}/enable");
        assert_eq!(self.call("POST", &path, &operator, None).await.expect(200)["disabled"], Value::Null);
    }

    /// One round of a task that has seen nothing before; whether nothing was left to stop.
    async fn stop_disabled(&self) -> bool {
        Stopper::new(self.app.clone()).round().await.unwrap()
    }

    /// What state the agent has a sandbox in.
    fn at_agent(&self, id: &str) -> Value {
        json!(self.agent.records().sandboxes[id].state)
    }

    /// The newest in the audit about something: by whom, what, and with which status.
    async fn audited(&self, resource: &str) -> (String, String, u16) {
        let entry = self.app.store.audit.newest(Some(resource), 1).await.unwrap().remove(0);
        (entry.key_id, entry.action, entry.status)
    }
}

impl Answer {
    /// Asserts that it was refused because the team is disabled, and says what to do.
    #[track_caller]
    pub(crate) fn refused_as_disabled(self) {
        let body = self.refused(403, "team_disabled");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(WHY) && message.contains("ask the operator"), "{message}");
    }
}

#[tokio::test]
async fn what_runs_of_a_disabled_team_is_paused_until_it_is_enabled_and_resumed() {
    let host = Host::new().await;
    let (one, two) = (host.sandbox().await, host.sandbox().await);
    let rivals = host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    let rivals = rivals["id"].as_str().unwrap();
    let checkpoint = host.checkpoint(&one, json!({})).await;
    assert!(host.stop_disabled().await, "there is nothing to stop");

    host.disable("acme").await;
    assert!(!host.stop_disabled().await);
    assert!(host.stop_disabled().await);

    for id in [&one, &two] {
        assert_eq!(host.at_agent(id), "stopped");
        let pause = ("disabled".to_owned(), "POST /v1/sandboxes/{id}/pause".to_owned(), 200);
        assert_eq!(host.audited(id).await, pause);
    }
    assert_eq!(host.agent.records().forced, [false, true, true], "whatever is open on volumes, and not the checkpoint");
    assert_eq!(host.at_agent(rivals), "ready");
    host.get(&format!("/v1/sandboxes/{one}")).await.refused_as_disabled();
    host.call("GET", &format!("/v1/sandboxes/{rivals}"), &host.foreign, None).await.expect(200);

    host.enable("acme").await;
    assert!(host.stop_disabled().await);

    let shown = host.get(&format!("/v1/sandboxes/{one}")).await.expect(200);
    assert_eq!(shown["state"], "stopped", "until it is resumed");
    host.post(&format!("/v1/sandboxes/{one}/resume"), json!({})).await.expect(200);
    host.stop_disabled().await;
    assert_eq!((host.at_agent(&one), host.at_agent(&two)), (json!("ready"), json!("stopped")));
    host.get(&format!("/v1/checkpoints/{}", checkpoint["id"].as_str().unwrap())).await.expect(200);
    assert!(host.agent.records().deletes.is_empty());
}

#[tokio::test]
async fn a_pause_that_fails_or_that_a_dead_process_began_is_made_again_until_it_is_done() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.disable("acme").await;
    host.agent.records().refuse = Some((502, "guest_failed"));
    let mut stopper = Stopper::new(host.app.clone());
    for _ in 0..2 {
        assert!(!stopper.round().await.unwrap());
    }
    assert_eq!(host.agent.records().forced.len(), 1, "not again at once");
    host.pass(SignedDuration::from_secs(2));
    assert!(!stopper.round().await.unwrap());
    assert_eq!(host.agent.records().forced.len(), 2);
    assert_eq!(host.at_agent(&id), "ready");

    // A process has said that it stops it, and was killed before it asked the agent.
    assert!(host.app.store.sandboxes.mark_stopping(&id).await.unwrap());
    host.agent.records().refuse = None;
    let host = host.restart().await;
    host.app.store.processes.outlive_others().await.unwrap();
    assert!(!host.stop_disabled().await);
    assert_eq!(host.at_agent(&id), "ready", "it is not known yet that nobody stops it");
    host.sync().await;
    host.stop_disabled().await;

    assert_eq!(host.at_agent(&id), "stopped");
    assert!(host.stop_disabled().await);
}

#[tokio::test]
async fn more_may_be_paused_than_the_plan_keeps_stopped() {
    let host = Host::with(|config| config.plans.pro.quota.stopped = 1).await;
    let sandboxes = [host.sandbox().await, host.sandbox().await, host.sandbox().await];

    host.disable("acme").await;
    host.stop_disabled().await;

    for id in &sandboxes {
        assert_eq!(host.at_agent(id), "stopped");
    }
}

#[tokio::test]
async fn builds_of_a_disabled_team_are_cancelled_and_those_of_others_go_on() {
    let host = Host::new().await;
    host.template("node").await;
    let id = host.building("node").await;
    host.by_rival("POST", "/v1/templates", Some(json!({"slug": "go"}))).await.expect(201);
    let image = json!({"source": {"image": {"reference": "registry.example/node:22"}}});
    let rivals = host.by_rival("POST", "/v1/templates/go/versions", Some(image)).await.expect(202);
    let rivals = rivals["id"].as_str().unwrap().to_owned();

    host.disable("acme").await;
    assert!(!host.stop_disabled().await);

    let state = |id: &str| host.agent.records().builds[id].build.state;
    assert_eq!(state(&id), BuildState::Cancelled);
    assert_ne!(state(&rivals), BuildState::Cancelled);
    assert!(host.stop_disabled().await);
    let (by, action, _) = host.audited(&id).await;
    assert_eq!((by.as_str(), action.as_str()), ("disabled", "POST /v1/templates/{slug}/versions/{version}/cancel"));
}

#[tokio::test]
async fn the_agent_is_told_so_in_every_round_and_told_when_it_is_over() {
    let host = Host::new().await;
    host.sandbox().await;
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    let mut synchronizer = Synchronizer::new(host.app.clone());
    synchronizer.round().await.unwrap();
    let told = || std::mem::take(&mut host.agent.records().allowances);
    let acme = host.app.store.teams.by_slug("acme").await.unwrap().unwrap().id;
    told();
    host.disable("acme").await;

    for _ in 0..2 {
        synchronizer.round().await.unwrap();
        let told: Vec<_> = told().into_iter().map(|one| (one.team, one.disabled)).collect();
        assert_eq!(told, [(acme.clone(), true)]);
    }

    host.enable("acme").await;
    synchronizer.round().await.unwrap();
    assert_eq!(told().into_iter().map(|one| (one.team, one.disabled)).collect::<Vec<_>>(), [(acme, false)]);
    synchronizer.round().await.unwrap();
    assert_eq!(told(), []);
}

#[tokio::test]
async fn a_kept_response_and_its_credentials_are_not_given_out_again() {
    let host = Host::new().await;
    let create = || {
        let create = request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"})));
        with_header(create, "idempotency-key", "k")
    };
    let made = host.send(create()).await.expect(201);
    host.disable("acme").await;

    host.send(create()).await.refused_as_disabled();

    let refused = host.app.store.audit.newest(None, 1).await.unwrap().remove(0);
    assert_eq!((refused.action.as_str(), refused.status), ("POST /v1/sandboxes", 403));
    host.enable("acme").await;
    let again = host.send(create()).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(201)["id"], made["id"]);
}

#[tokio::test]
async fn a_person_keeps_ones_own_things_and_other_teams() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let call = async |method: &str, path: &str, body| host.call(method, path, &ada.token, body).await;
    call("POST", "/v1/teams", Some(json!({"slug": "lab"}))).await.expect(201);
    for team in ["acme", &ada.personal] {
        host.disable(team).await;
    }

    let me = call("GET", "/v1/me", None).await.expect(200);
    assert_eq!((&me["user"]["email"], &me["team"]["disabled"]["reason"]), (&json!("ada@example.com"), &json!(WHY)));
    let teams = call("GET", "/v1/teams", None).await.expect(200);
    let disabled: Vec<_> = teams["teams"].as_array().unwrap().iter().map(|team| !team["disabled"].is_null()).collect();
    assert_eq!(disabled.iter().filter(|disabled| **disabled).count(), 2, "{teams}");
    call("PATCH", "/v1/me", Some(json!({"name": "Ada"}))).await.expect(200);
    call("GET", "/v1/me/sessions", None).await.expect(200);
    call("GET", "/v1/sandboxes", None).await.refused_as_disabled();
    call("GET", "/v1/sandboxes?team=acme", None).await.refused_as_disabled();
    call("GET", "/v1/sandboxes?team=lab", None).await.expect(200);
    call("POST", "/v1/sandboxes", Some(json!({"template": "base", "team": "lab"}))).await.expect(201);
    call("POST", "/v1/sandboxes", Some(json!({"template": "base", "team": "acme"}))).await.refused_as_disabled();
    host.call("GET", "/v1/me", &host.write, None).await.refused_as_disabled();
    call("POST", "/v1/logout", None).await.expect(204);
}

#[tokio::test]
async fn pages_of_a_disabled_team_say_so_and_lead_to_the_others() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let visitor = host.visitor(&ada.token);
    host.disable("acme").await;
    for page in ["sandboxes", "limits", "keys", "new"] {
        let answer = visitor.get(&format!("/dashboard/acme/{page}")).await;
        assert_eq!(answer.status.as_u16(), 403);
        let own = format!("/dashboard/{}/sandboxes", ada.personal);
        assert!([WHY, "is disabled", own.as_str()].iter().all(|text| answer.text.contains(text)), "{}", answer.text);
    }
    let sent = visitor.send("/dashboard/acme/new", &[("template", "base")]).await;
    assert!(sent.status == 403 && sent.text.contains(WHY), "{}", sent.text);
    visitor.page(&format!("/dashboard/{}/sandboxes", ada.personal)).await;

    host.disable(&ada.personal).await;
    visitor.page("/dashboard/account").await;
    host.enable("acme").await;
    visitor.page("/dashboard/acme/sandboxes").await;
}

#[tokio::test]
async fn webhooks_of_a_disabled_team_wait_and_none_is_lost() {
    let (stage, receiver) = (Stage::new().await, Receiver::answering(200).await);
    stage.webhook(&receiver.url(), &["sandbox.created", "sandbox.paused"]).await;
    stage.host.sandbox().await;
    stage.host.disable("acme").await;
    assert_eq!(stage.round(&receiver).await, 0, "of an event that was there before");
    stage.host.stop_disabled().await;
    assert_eq!(stage.round(&receiver).await, 0);
    assert_eq!(stage.host.app.store.webhooks.sent.next_due().await.unwrap(), None, "the worker sleeps");

    stage.host.enable("acme").await;

    assert_eq!(stage.round(&receiver).await, 2);
}

#[tokio::test]
async fn a_delivery_that_is_due_waits_while_its_team_is_disabled() {
    let (stage, receiver) = (Stage::new().await, Receiver::answering(200).await);
    let webhook = stage.webhook(&receiver.url(), &[]).await;
    stage.call("POST", &webhook.path("/test"), None).await;
    stage.host.disable("acme").await;

    assert_eq!(stage.round(&receiver).await, 0);
    assert_eq!(stage.host.app.store.webhooks.sent.next_due().await.unwrap(), None);

    stage.host.enable("acme").await;
    assert_eq!(stage.round(&receiver).await, 1);
}

#[tokio::test]
async fn nothing_of_a_disabled_team_is_deleted_at_the_end_of_its_days() {
    let host = Host::with(|config| {
        (config.plans.pro.stopped_days, config.plans.pro.checkpoint_days) = (7, 7);
    })
    .await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
    host.post(&format!("/v1/sandboxes/{sandbox}/pause"), json!({})).await.expect(200);
    host.sync().await;
    host.disable("acme").await;

    for _ in 0..3 {
        host.pass(SignedDuration::from_hours(24 * 30));
        host.sync().await;
    }
    host.enable("acme").await;
    host.sync().await;

    let shown = host.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200);
    let notice = |shown: &Value| {
        let end: jiff::Timestamp = shown["expires_at"].as_str().unwrap().parse().unwrap();
        end.duration_since(host.app.clock.now()) > SignedDuration::from_hours(23)
    };
    assert!(notice(&shown), "{shown}");
    let shown = host.get(&format!("/v1/checkpoints/{checkpoint}")).await.expect(200);
    assert!(notice(&shown), "{shown}");
}

#[tokio::test]
async fn operators_disable_and_enable_teams_see_it_and_are_audited() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let call = async |method: &str, path: &str, body| host.call(method, path, &operator, body).await;
    let path = "/operator/v1/teams/acme";
    let disable = async |reason: &str| call("POST", &format!("{path}/disable"), Some(json!({"reason": reason}))).await;
    for reason in ["", "  ", "a\nb", &"x".repeat(501)] {
        disable(reason).await.blames("reason");
    }
    call("POST", &format!("{path}/disable"), Some(json!({}))).await.refused(400, "invalid_request");
    call("POST", "/operator/v1/teams/nobodys/disable", Some(json!({"reason": "x"}))).await.refused(404, "not_found");
    call("POST", "/operator/v1/teams/nobodys/enable", None).await.refused(404, "not_found");
    host.get("/v1/sandboxes").await.expect(200);

    let first = disable("One").await.expect(200);
    host.pass(SignedDuration::from_secs(60));
    let second = disable("Two").await.expect(200);

    assert_eq!((&first["disabled"]["reason"], &second["disabled"]["reason"]), (&json!("One"), &json!("Two")));
    assert_eq!(first["disabled"]["at"], second["disabled"]["at"]);
    let acme = first["id"].as_str().unwrap().to_owned();
    let (_, action, status) = host.audited(&acme).await;
    assert_eq!((action.as_str(), status), ("POST /operator/v1/teams/{team}/disable", 200));
    let listed = async |query: &str| {
        let page = call("GET", &format!("/operator/v1/teams?{query}"), None).await.expect(200);
        page["teams"].as_array().unwrap().iter().map(|team| team["slug"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed("disabled=true").await, ["acme"]);
    assert_eq!(listed("disabled=false").await, ["rival"]);
    call("GET", "/operator/v1/teams?disabled=perhaps", None).await.blames("disabled");
    call("PATCH", path, Some(json!({"plan": "enterprise"}))).await.expect(200);
    assert_eq!(call("GET", path, None).await.expect(200)["disabled"]["reason"], "Two");

    for _ in 0..2 {
        assert_eq!(call("POST", &format!("{path}/enable"), None).await.expect(200)["disabled"], Value::Null);
    }
    let (_, action, status) = host.audited(&acme).await;
    assert_eq!((action.as_str(), status), ("POST /operator/v1/teams/{team}/enable", 200));
    host.get("/v1/sandboxes").await.expect(200);
}
