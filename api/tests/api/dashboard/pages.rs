//! What pages show, and to whom.

use std::time::Duration;

use sandpiper_accounts::Role;
use sandpiper_api::orchestration::collect::Collector;
use sandpiper_api::plan::Plan;
use sandpiper_api::store::webhooks::{NewWebhook, WebhookId, WebhookKey};
use sandpiper_delivery::store::claims::{Decision, Finished};
use sandpiper_delivery::store::delivery::State;
use sandpiper_protocol::interval::Bytes;
use serde_json::json;

use super::leads_to;
use crate::support::Host;
use crate::support::data_plane::data_plane;

/// Of a team, with what is there; `{…}` is filled in.
pub(super) const PAGES: [&str; 21] = [
    "sandboxes",
    "sandboxes?state=ready&metadata=purpose%3Dtests",
    "new",
    "sandboxes/{sandbox}",
    "sandboxes/{sandbox}/files",
    "sandboxes/{sandbox}/files?path={folder}",
    "sandboxes/{sandbox}/network",
    "checkpoints",
    "checkpoints?sandbox={sandbox}",
    "templates",
    "templates/base",
    "templates/app",
    "templates/app/versions/{version}",
    "volumes",
    "volumes/{volume}",
    "webhooks",
    "webhooks/{webhook}",
    "limits",
    "usage",
    "members",
    "account",
];
/// For those who have to do with keys and members.
pub(super) const MANAGED: [&str; 2] = ["keys", "audit"];

/// What a team has.
pub(super) struct Things {
    sandbox: String,
    version: String,
    volume: String,
    webhook: String,
    /// What the data plane of the sandbox has; nothing where there is none.
    folder: Option<(String, tempfile::TempDir)>,
}

impl Things {
    /// One of everything, of the team `acme`.
    pub(super) async fn make(host: &Host) -> Self {
        let folder = data_plane("files of a sandbox in the dashboard's pages").await.map(|(url, folder)| {
            host.agent.records().data_plane = Some(url.clone());
            std::fs::write(folder.path().join("report.csv"), "month,sum\n").unwrap();
            (url, folder)
        });
        let created = host.create(json!({"template": "base", "metadata": {"purpose": "tests"}})).await.expect(201);
        let sandbox = created["id"].as_str().unwrap().to_owned();
        host.agent.measure(&sandbox, 0);
        host.agent.measure(&sandbox, 5);
        let checkpoint = host.checkpoint(&sandbox, json!({"name": "before", "memory": true})).await;
        let restored = host.create(json!({"snapshot_id": checkpoint["id"]})).await.expect(201);
        host.checkpoint(restored["id"].as_str().unwrap(), json!({"name": "after"})).await;
        host.template("app").await;
        let version = host.building("app").await;
        host.agent.print(&version, "Step 1 of 2");
        let volume = host.post("/v1/volumes", json!({"name": "models"})).await.expect(201);
        let webhook = webhook(host).await;
        Self { sandbox, version, volume: volume["id"].as_str().unwrap().to_owned(), webhook, folder }
    }

    pub(super) fn path(&self, page: &str) -> String {
        let page = page.replace("{sandbox}", &self.sandbox).replace("{version}", &self.version);
        let folder = self.folder.as_ref().map_or("~", |(_, folder)| folder.path().to_str().unwrap());
        let page = page.replace("{volume}", &self.volume).replace("{webhook}", &self.webhook);
        let page = page.replace("{folder}", folder);
        if page == "account" { "/dashboard/account".to_owned() } else { format!("/dashboard/acme/{page}") }
    }
}

/// One with a delivery that was refused and one that waits.
async fn webhook(host: &Host) -> String {
    let app = &host.app;
    let (team, now) = (app.store.teams.by_slug("acme").await.unwrap().unwrap().id, app.clock.now());
    let key = WebhookKey { team, id: WebhookId::generate() };
    let sealed = app.vault.seal(&key.id, b"whsec_c2VjcmV0").unwrap();
    let url = "https://hooks.example.test/".to_owned();
    let new = NewWebhook { key: key.clone(), name: "on call".to_owned(), url, types: Vec::new(), sealed };
    app.store.webhooks.create(new, app.settings.plans.of(Plan::Pro).quota, now).await.unwrap();
    app.store.webhooks.test(key.clone(), b"{}".to_vec(), now).await.unwrap();
    let claimed = app.store.webhooks.sent.claim(1, now).await.unwrap().deliveries.remove(0);
    let refused = Finished {
        claimed,
        ended_at: now,
        duration: Duration::from_millis(5),
        signed_at: Some(0),
        result: Ok(410),
        detail: "gone".to_owned(),
        decision: Decision::End(State::Failed),
    };
    app.store.webhooks.sent.finish(vec![refused], 4).await.unwrap();
    app.store.webhooks.test(key.clone(), b"{}".to_vec(), now).await.unwrap();
    key.id.to_string()
}

#[tokio::test]
async fn every_page_is_shown_to_every_role_that_may_see_it() {
    let host = Host::new().await;
    let things = Things::make(&host).await;
    for role in [Role::Viewer, Role::Member, Role::Admin, Role::Owner] {
        let user = host.user(&format!("{role}@example.com"), "acme", role).await;
        let visitor = host.visitor(&user.token);
        for page in PAGES {
            let text = visitor.page(&things.path(page)).await;
            assert!(text.contains("<h1>") && text.contains(&format!("{role}@example.com")), "{page} as {role}");
        }
        for page in MANAGED {
            let status = visitor.get(&things.path(page)).await.status.as_u16();
            assert_eq!(status, if role >= Role::Admin { 200 } else { 403 }, "{page} as {role}");
        }
    }
}

#[tokio::test]
async fn a_viewer_sees_no_form_that_changes_the_teams_things() {
    let host = Host::new().await;
    let things = Things::make(&host).await;
    let viewer = host.user("vi@example.com", "acme", Role::Viewer).await;
    let visitor = host.visitor(&viewer.token);
    let own = format!("/dashboard/acme/members/{}/do", viewer.id);
    for page in PAGES.into_iter().filter(|page| !["new", "account"].contains(page)) {
        let text = visitor.page(&things.path(page)).await;
        let actions = text.split(r#"method="post" action=""#).skip(1).map(|rest| rest.split('"').next().unwrap());
        for action in actions {
            // The network policy is shown in fields that are switched off.
            let is_allowed = action == "/dashboard/sign-out" || action == own || action.ends_with("/network");
            assert!(is_allowed, "{page}: {action}");
        }
        assert_eq!(page.ends_with("/network"), text.contains("<fieldset disabled>"), "{page}");
    }
}

#[tokio::test]
async fn what_a_team_has_is_shown_to_its_members_alone() {
    let host = Host::new().await;
    let things = Things::make(&host).await;
    let stranger = host.user("eve@example.com", "rival", Role::Owner).await;
    let visitor = host.visitor(&stranger.token);
    for page in PAGES.into_iter().chain(MANAGED).filter(|page| *page != "account") {
        let path = things.path(page);
        assert_eq!(visitor.get(&path).await.status.as_u16(), 404, "{path}");
        // Nor by way of a team of one's own.
        let through_own = path.replace("/acme/", "/rival/");
        let is_of_one = |id: &&String| path.split('?').next().unwrap().contains(id.as_str());
        if [&things.sandbox, &things.version, &things.volume, &things.webhook].iter().any(is_of_one) {
            assert_eq!(visitor.get(&through_own).await.status.as_u16(), 404, "{through_own}");
        }
    }
    let own = visitor.page("/dashboard/rival/sandboxes").await;
    assert!(!own.contains(&things.sandbox));
}

#[tokio::test]
async fn lists_have_filters_and_pages() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Member).await;
    let visitor = host.visitor(&user.token);
    for number in 0..3 {
        host.create(json!({"template": "base", "metadata": {"number": number.to_string(), "of": "three"}}))
            .await
            .expect(201);
    }
    let count = |text: &str| text.matches(r#"class="state ready""#).count();
    let filtered = async |query: &str| count(&visitor.page(&format!("/dashboard/acme/sandboxes?{query}")).await);
    assert_eq!(filtered("metadata=of%3Dthree").await, 3);
    assert_eq!(filtered("metadata=number%3D1&state=ready").await, 1);
    assert_eq!(filtered("state=stopped").await, 0);
    let wrong = visitor.get("/dashboard/acme/sandboxes?state=nonsense").await;
    assert_eq!(wrong.status.as_u16(), 400, "{}", wrong.text);
    assert!(visitor.page("/dashboard/acme/sandboxes?next_token=").await.contains("<h1>"));
    let audit = host.user("root@example.com", "acme", Role::Admin).await;
    let audit = host.visitor(&audit.token).page("/dashboard/acme/audit?action=POST+/v1/sandboxes").await;
    assert!(audit.contains("POST /v1/sandboxes"));
}

#[tokio::test]
async fn the_page_of_usage_has_what_went_through_the_networks_of_sandboxes() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Viewer).await;
    let team = host.app.store.teams.by_slug("acme").await.unwrap().unwrap().id;
    let now_ms = host.app.clock.now().as_millisecond();
    let mut running = host.agent.begin("sbx0000000000000000000001", Some(&team), (1, 512), now_ms - 60_000);
    host.agent.read(&mut running, now_ms, Bytes { egress: 3 << 20, ingress: 5 << 30 });
    Collector::new(host.app.clone()).round().await.unwrap();

    let text = host.visitor(&user.token).page("/dashboard/acme/usage").await;

    // Of the day, and of all.
    assert_eq!((text.matches("3.0 MiB").count(), text.matches("5.0 GiB").count()), (2, 2), "{text}");
    assert!(text.contains("<figcaption>Egress, MiB <strong>3.00</strong>"), "{text}");
}

#[tokio::test]
async fn a_page_that_there_is_not_says_so() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Member).await;
    let visitor = host.visitor(&user.token);
    for path in [
        "/dashboard/nonsense",
        "/dashboard/acme/nonsense",
        "/dashboard/acme/sandboxes/sbx0",
        "/dashboard/acme/volumes/..%2f..%2fme",
    ] {
        let answer = visitor.get(path).await;
        assert_eq!(answer.status.as_u16(), 404, "{path}: {}", answer.text);
        assert!(answer.header("content-type").unwrap().starts_with("text/html"), "{path}");
    }
    assert_eq!(leads_to(&visitor.get("/dashboard").await), format!("/dashboard/{}/sandboxes", user.personal));
}

#[tokio::test]
async fn a_first_look_transfers_little() {
    const MOST: usize = 150 << 10;
    let host = Host::new().await;
    let things = Things::make(&host).await;
    // As many as a page of the list has, or the team may have.
    for number in 0..50 {
        let metadata = json!({"number": number.to_string(), "owner": "research", "note": "x".repeat(60)});
        if host.create(json!({"template": "base", "metadata": metadata})).await.status.as_u16() != 201 {
            break;
        }
    }
    let user = host.user("ada@example.com", "acme", Role::Owner).await;
    let visitor = host.visitor(&user.token);
    for page in PAGES.into_iter().chain(MANAGED) {
        let text = visitor.page(&things.path(page)).await;
        let mut bytes = text.len();
        let assets = text.split('"').filter(|part| part.starts_with("/dashboard/-/assets/"));
        for asset in assets.collect::<std::collections::BTreeSet<_>>() {
            bytes += visitor.page(asset).await.len();
        }
        assert!(bytes < MOST, "{page} and what it loads have {bytes} bytes");
    }
}
