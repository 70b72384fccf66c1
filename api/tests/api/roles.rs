//! `serve --roles`: real processes, each of one side alone.

use std::path::PathBuf;

use sandpiper_db::Database;
use sandpiper_db::testing::TestDatabase;
use serde_json::json;
use tempfile::TempDir;

use crate::command::{Server, json as body, run, send, stdout, write_config};
use crate::support::agent::StubAgent;
use crate::support::eventually;

/// Of each side, some routes.
const SANDBOXES: [&str; 5] = ["/v1/sandboxes", "/v1/sandbox_limits", "/operator/v1/teams", "/openapi.json", "/docs"];
const PAYMENTS: [&str; 5] = [
    "/merchant/api/v1/catalog",
    "/operator/v1/merchants",
    "/portal/sign-in",
    "/payments-openapi.json",
    "/payments-docs",
];
/// A webhook that ended so long ago that the payments side deletes it.
const OLD_WEBHOOK: [&str; 3] = [
    "INSERT INTO merchants (id, name, created_at_ms) VALUES ('m', 'm', 0) ON CONFLICT DO NOTHING",
    "INSERT INTO webhook_endpoints (merchant_id, realm, url, cap, updated_at_ms) VALUES ('m', 'live', 'u', 4, 0) \
     ON CONFLICT DO NOTHING",
    "INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, created_at_ms, ended_at_ms, body) \
     VALUES ('dlv_00000000000000000000000000', 'm', 'live', 'cancelled', 'test', 0, 1, '')",
];
/// What no process that needs it would start with.
const NO_KEY: &str = "not a key\n";

/// A database, and configurations of processes that serve it.
struct Site {
    database: TestDatabase,
    folder: TempDir,
}

impl Site {
    async fn new() -> Self {
        Self { database: TestDatabase::new().await, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration with key files of its own, and these settings.
    fn config(&self, name: &str, settings: &str) -> PathBuf {
        let config = self.path(&format!("{name}.toml"));
        write_config(&config, &self.path("agent.sock"), &self.database);
        let keys = [("secrets_key_file", "tenants.key"), ("merchant_secrets_key_file", "merchants.key")];
        let keys: String = keys.map(|(key, file)| format!("{key} = {:?}\n", self.path(file))).concat();
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{text}{keys}{settings}")).unwrap();
        config
    }

    /// The sandbox side alone, whose configuration and keys of payments are of no use.
    fn sandboxes(&self) -> Server {
        std::fs::write(self.path("merchants.key"), NO_KEY).unwrap();
        let config = self.config("sandboxes", "[webhooks]\nkeep_days = 1\nca_file = \"/nowhere/ca.pem\"\n");
        let both = run(&["serve", "--config", config.to_str().unwrap()]);
        assert!(String::from_utf8_lossy(&both.stderr).contains("webhooks.keep_days"), "{both:?}");
        Server::with_arguments(&config, &["--roles", "sandboxes"])
    }

    /// The payments side alone, likewise, and without an agent.
    fn payments(&self) -> Server {
        std::fs::write(self.path("tenants.key"), NO_KEY).unwrap();
        let config = self.config("payments", "[baseline]\ncpu = 0\nmemory_mb = 0\n");
        let both = run(&["serve", "--config", config.to_str().unwrap()]);
        assert!(String::from_utf8_lossy(&both.stderr).contains("baseline"), "{both:?}");
        Server::with_arguments(&config, &["--roles", "payments"])
    }

    /// The key that a command prints.
    fn key(&self, arguments: &[&str]) -> String {
        let config = self.config("keys", "");
        let made = stdout(&run(&[arguments, &["--config", config.to_str().unwrap()]].concat()));
        made.trim().to_owned()
    }

    async fn database(&self) -> Database {
        Database::open(&self.database.location.parse().unwrap()).await.unwrap()
    }

    async fn add_old_webhook(&self) {
        let mut tx = self.database().await.write().await.unwrap();
        for statement in OLD_WEBHOOK {
            sqlx::query(statement).execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    /// How many webhooks there are, how many templates, and how many processes that serve sandboxes.
    async fn counts(&self) -> [i64; 3] {
        let database = self.database().await;
        let mut counts = [0; 3];
        let queries = [
            "SELECT COUNT(*) FROM webhook_deliveries",
            "SELECT COUNT(*) FROM template_versions",
            "SELECT COUNT(*) FROM processes",
        ];
        for (count, query) in counts.iter_mut().zip(queries) {
            *count = sqlx::query_scalar(query).fetch_one(database.read()).await.unwrap();
        }
        counts
    }

    fn team_key(&self) -> String {
        self.key(&["key", "create", "--team", "acme", "--capability", "write"])
    }
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap()
}

fn metrics(server: &Server) -> String {
    send(&server.metrics, "GET", "/metrics", "", "").unwrap()
}

/// Of the routes, those that are not there.
fn missing<'a>(server: &Server, routes: &[&'a str]) -> Vec<&'a str> {
    routes.iter().copied().filter(|path| status(&server.get(path, "none")) == "404").collect()
}

/// A merchant with a secret key, which must be sealed.
fn make_merchant(server: &Server, operator: &str) {
    let merchant = body(&server.send("POST", "/operator/v1/merchants", operator, r#"{"name": "acme"}"#));
    let path = format!("/operator/v1/merchants/{}/keys", merchant["id"].as_str().unwrap());
    let key = json!({"realm": "live", "kind": "secret"}).to_string();
    let made = body(&server.send("POST", &path, operator, &key));
    assert!(made["key"].as_str().is_some_and(|key| key.starts_with("sk_prod_")), "{made}");
}

async fn make_sandbox(server: &Server, key: &str) {
    eventually("the templates are known", async || server.get("/v1/templates", key).contains("base")).await;
    // What is in `envs` must be sealed.
    let wanted = r#"{"template": "base", "envs": {"TOKEN": "hush"}}"#;
    let made = server.send("POST", "/v1/sandboxes", key, wanted);
    assert_eq!(status(&made), "201", "{made}");
}

#[tokio::test]
async fn payments_alone_need_no_agent_and_no_key_of_tenants() {
    let site = Site::new().await;
    let operator = site.key(&["operator-key", "create"]);
    let server = site.payments();

    make_merchant(&server, &operator);

    assert_eq!(missing(&server, &PAYMENTS), [""; 0]);
    assert_eq!(missing(&server, &SANDBOXES), SANDBOXES);
    let health = body(&server.get("/healthz", ""));
    assert_eq!(health, json!({"status": "ok"}));
    let metrics = metrics(&server);
    assert!(metrics.contains("sandpiper_api_webhook_") && metrics.contains("sandpiper_api_requests_"), "{metrics}");
    assert!(!metrics.contains("sandpiper_api_sandboxes") && !metrics.contains("sandpiper_api_agent_"), "{metrics}");
}

#[tokio::test]
async fn sandboxes_alone_need_no_key_of_merchants() {
    let site = Site::new().await;
    let _agent = StubAgent::start(&site.path("agent.sock"));
    let key = site.team_key();
    let server = site.sandboxes();

    make_sandbox(&server, &key).await;

    assert_eq!(missing(&server, &SANDBOXES), [""; 0]);
    assert_eq!(missing(&server, &PAYMENTS), PAYMENTS);
    // Known at the end of the round that brought the templates.
    let healthy = json!({"status": "ok", "agent": "up"});
    eventually("the agent is up", async || body(&server.get("/healthz", "")) == healthy).await;
    let metrics = metrics(&server);
    assert!(metrics.contains("sandpiper_api_sandboxes") && metrics.contains("sandpiper_api_agent_up"), "{metrics}");
    assert!(!metrics.contains("sandpiper_api_webhook_"), "{metrics}");
}

#[tokio::test]
async fn only_the_payments_role_works_on_webhooks_and_only_the_sandboxes_role_with_the_agent() {
    let site = Site::new().await;
    let _agent = StubAgent::start(&site.path("agent.sock"));
    let key = site.team_key();

    site.add_old_webhook().await;
    let payments = site.payments();
    eventually("the old webhook is deleted", async || site.counts().await[0] == 0).await;
    assert_eq!(site.counts().await, [0; 3], "no template of the agent, no process that works with it");
    payments.end();

    std::fs::remove_file(site.path("tenants.key")).unwrap();
    site.add_old_webhook().await;
    let sandboxes = site.sandboxes();
    make_sandbox(&sandboxes, &key).await;
    sandboxes.end();
    let [webhooks, templates, _] = site.counts().await;
    assert!(webhooks == 1 && templates > 0, "{webhooks} {templates}");
}

#[tokio::test]
async fn two_processes_share_a_database_and_no_secret() {
    if std::env::var_os("SANDPIPER_TEST_POSTGRES").is_none() {
        sandpiper_skip::skipped("a process for each side", "one process serves SQLite; the run on PostgreSQL has it");
        return;
    }
    let site = Site::new().await;
    let _agent = StubAgent::start(&site.path("agent.sock"));
    let (key, operator) = (site.team_key(), site.key(&["operator-key", "create"]));
    // Each makes its own key file where the other's is of no use to it.
    let sandboxes = site.sandboxes();
    make_sandbox(&sandboxes, &key).await;
    std::fs::remove_file(site.path("merchants.key")).unwrap();
    let payments = site.payments();

    make_merchant(&payments, &operator);

    assert_eq!(
        (status(&sandboxes.get("/v1/sandboxes", &key)), status(&payments.get("/portal/sign-in", ""))),
        ("200", "200")
    );
}

#[test]
fn a_role_that_is_not_there_is_refused() {
    let refused = run(&["serve", "--roles", "sandboxes,webhooks"]);
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("'webhooks'") && text.contains("sandboxes, payments"), "{text}");
}
