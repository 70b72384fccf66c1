//! The configuration file (TOML). Everything has a default; an unknown key is an error, for a misspelt limit must not go
//! unnoticed. What a process does not serve it need not be configured for: a value of that is not looked at.
//!
//! ```toml
//! listen = "127.0.0.1:7070"
//! metrics_listen = "127.0.0.1:7071"           # for Prometheus: GET /metrics, for whoever reaches it. By default on
//!                                             # 127.0.0.1 the port after that of `listen`, or a free one; the log says
//! tls = { certificate = "/etc/sandpiper/api.pem", key = "/etc/sandpiper/api.key" }   # PEM, read again when they change;
//!                                             # or { acme = { … } } or "local_ca", as `ingress.tls` of the agent; "off"
//! host = "api.example.com"                    # the name in a certificate that is ordered or made
//! cors_origins = ["https://console.example.com"]   # whose pages may call; none by default
//! state_dir = "/var/lib/sandpiper/api"        # holds the database and the secrets key
//! database = "/var/lib/sandpiper/api/sandpiper.db"   # or postgres://user:password@host/name?sslmode=verify-full
//! secrets_key_file = "/var/lib/sandpiper/api/secrets.key"           # seals tenants' secrets
//! merchant_secrets_key_file = "/var/lib/sandpiper/api/secrets.key"  # seals merchants'; by default the same file
//! agent_socket = "/run/sandpiper/agent.sock"
//! user = "sandpiper"                          # become this user after binding; only for a start as root
//! request_body_limit = 1048576                # bytes
//!
//! volume_size_gib = 10                        # of a volume, as the agent's `[volumes] size_gib`: what its quota counts
//!
//! [rate_limit]                                # of each API key, and of each key of a merchant
//! per_second = 50
//! burst = 100
//!
//! [team_rate_limit]                           # of all keys and sessions of a team together
//! per_second = 200
//! burst = 400
//!
//! [operator_rate_limit]                       # of each operator key
//! per_second = 10000
//! burst = 20000
//!
//! [baseline]                                  # of a new template that names none
//! cpu = 1
//! memory_mb = 512
//!
//! [plans.basic]                               # a plan that is given is given whole; likewise plans.pro, plans.enterprise
//! cpu_values = [1, 2]
//! memory_mb_min = 128
//! memory_mb_max = 2048
//! memory_mb_step = 128
//! root_disk_gib = 10
//! max_timeout = 3600                          # seconds
//! stopped_days = 0                            # days for which a stopped sandbox is kept; 0: for ever
//! checkpoint_days = 0                         # likewise, a checkpoint that nobody uses
//! volume_days = 0                             # a volume that no sandbox mounts
//! template_version_days = 0                   # a version that is neither tagged nor its template's newest, and that nobody uses
//! quota = { sandboxes = 10, cpu = 20, memory_mb = 20480, volumes = 10, volume_gib = 100, templates = 20, build_minutes = 600, webhooks = 10 }
//! disk = { bandwidth = 268435456, operations = 10000, flushes = 100 }   # per second and sandbox, within the agent's `[disk]`
//! network = { bandwidth = 134217728, packets = 100000 }                 # and `[network.limits]`; what is left out: as there
//! build = { seconds = 1800, log_bytes = 16777216, cpu = 2, memory_mb = 2048, upload_bytes = 10737418240 }   # of a template's
//!                                             # version; upload_bytes: of all files that a team sends for builds within a day
//!
//! [events]                                    # of teams, as `GET /v1/events` shows them
//! keep_days = 30
//! keep_most = 100000                          # of each team: the newest
//!
//! [webhooks]                                  # of merchants; `[team_webhooks]`, of teams, has the same
//! concurrency = 1024                          # attempts at a time
//! resolvers = ["192.0.2.53"]                  # asked for names, in place of those in /etc/resolv.conf
//! keep_days = 90                              # how long deliveries are kept after their end; at least 8
//! allow_addresses = ["127.0.0.0/8"]           # for development: none by default
//! ca_file = "/etc/sandpiper/dev-ca.pem"       # for development: trusted besides the system's authorities
//!
//! [telemetry]                                 # traces and metrics, sent to a collector (OTLP over HTTP); off by default
//! endpoint = "http://127.0.0.1:4318"
//! interval_seconds = 10
//!
//! [oidc]                                      # people sign in to the dashboard at a provider of OpenID Connect; off by default
//! issuer = "https://login.example.com"
//! client_id = "sandpiper"
//! client_secret_file = "/etc/sandpiper/oidc.secret"   # for this process's user alone; without it, a public client
//! origin = "https://api.example.com"          # where browsers reach the dashboard
//! name = "Example"                            # on the button: Sign in with Example
//! scopes = ["email", "profile"]               # besides openid
//! sign_up = false                             # true: whoever the provider knows gets an account
//! allowed_domains = ["example.com"]           # of e-mail addresses that may be linked to accounts; all by default
//!
//! [prices]                                    # decimal text, for the limits and the cost of what was used; without them usage
//! currency = "USD"                            # has no cost
//! vcpu_second = "0.000014"
//! memory_gib_second = "0.0000045"
//! storage_gib_hour = "0.00014"
//! egress_gib = "0.09"                         # what leaves a sandbox, and what comes to it; nothing by default
//! ingress_gib = "0"
//!
//! [payments]                                  # the words of enumerations, and the largest file to import, in bytes
//! payment_methods = ["PAYMENT_METHOD_BANK_ACCOUNT", "PAYMENT_METHOD_MOBILE_MONEY", "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER"]
//! traffic_verticals = ["TRAFFIC_VERTICAL_ECOMMERCE", "TRAFFIC_VERTICAL_FINANCIAL_SERVICES", "TRAFFIC_VERTICAL_GAMING"]
//! customer_segments = ["CUSTOMER_SEGMENT_BUSINESS", "CUSTOMER_SEGMENT_CONSUMER"]
//! import_limit = 16777216
//! import_entries = 20000
//! ```

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use sandpiper_accounts::oidc;
use sandpiper_db::DatabaseLocation;
use sandpiper_delivery::settings::Settings as WebhookSettings;
use sandpiper_discovery::settings::PaymentSettings;
use sandpiper_http::limits::RateLimit;
use sandpiper_ingress::{ConfigError as IngressError, Tls};
use serde::Deserialize;
use url::{Host, Url};

use crate::billing::prices::Prices;
use crate::plan::{Plan, Plans};
use crate::roles::Roles;
use crate::settings::{Baseline, EventSettings, Settings, Timing};
use crate::telemetry;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("Configuration file {path:?} cannot be read")]
    Read { path: PathBuf, source: std::io::Error },
    /// Without the text of the line, which may hold a password.
    #[error("Configuration file {path:?}, line {line}: {reason}")]
    Parse { path: PathBuf, line: usize, reason: String },
    #[error("Configuration: {key}: {reason}")]
    Value { key: String, reason: String },
}

/// Everything an operator can set.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: SocketAddr,
    /// [`sandpiper_http::metrics::bind`] says where by default.
    pub metrics_listen: Option<SocketAddr>,
    pub tls: Tls,
    pub host: String,
    pub cors_origins: Vec<String>,
    pub state_dir: PathBuf,
    /// [`Config::database`] says where it is by default.
    pub database: Option<DatabaseLocation>,
    secrets_key_file: Option<PathBuf>,
    merchant_secrets_key_file: Option<PathBuf>,
    pub agent_socket: PathBuf,
    pub user: Option<String>,
    pub request_body_limit: usize,
    pub rate_limit: RateLimit,
    pub team_rate_limit: RateLimit,
    pub operator_rate_limit: RateLimit,
    pub baseline: Baseline,
    pub volume_size_gib: u32,
    pub plans: Plans,
    pub prices: Option<Prices>,
    pub events: EventSettings,
    pub oidc: Option<oidc::Settings>,
    pub telemetry: telemetry::Settings,
    pub payments: PaymentSettings,
    pub webhooks: WebhookSettings,
    pub team_webhooks: WebhookSettings,
    #[serde(skip)]
    pub timing: Timing,
    /// Settings that only another role needs are not checked.
    #[serde(skip)]
    pub roles: Roles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            metrics_listen: None,
            tls: Tls::Off,
            host: "localhost".to_owned(),
            cors_origins: Vec::new(),
            state_dir: PathBuf::from("/var/lib/sandpiper/api"),
            database: None,
            secrets_key_file: None,
            merchant_secrets_key_file: None,
            agent_socket: PathBuf::from("/run/sandpiper/agent.sock"),
            user: None,
            request_body_limit: 1024 * 1024,
            rate_limit: RateLimit {
                per_second: NonZeroU32::MIN.saturating_add(49),
                burst: NonZeroU32::MIN.saturating_add(99),
            },
            team_rate_limit: RateLimit {
                per_second: NonZeroU32::MIN.saturating_add(199),
                burst: NonZeroU32::MIN.saturating_add(399),
            },
            operator_rate_limit: RateLimit {
                per_second: NonZeroU32::MIN.saturating_add(9_999),
                burst: NonZeroU32::MIN.saturating_add(19_999),
            },
            baseline: Baseline { cpu: 1, memory_mb: 512 },
            volume_size_gib: 10,
            plans: Plans::default(),
            prices: None,
            events: EventSettings::default(),
            oidc: None,
            telemetry: telemetry::Settings::default(),
            payments: PaymentSettings::default(),
            webhooks: WebhookSettings::default(),
            team_webhooks: WebhookSettings::default(),
            timing: Timing::default(),
            roles: Roles::default(),
        }
    }
}

impl Config {
    /// Reads the file at `path` and checks what these roles need of it; without a path, the defaults.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read, or a value cannot be used.
    pub fn load(path: Option<&Path>, roles: Roles) -> Result<Self, ConfigError> {
        let config = match path {
            None => Self::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
                toml::from_str(&text).map_err(|error| ConfigError::Parse {
                    path: path.to_owned(),
                    line: error.span().map_or(1, |span| line_of(&text, span.start)),
                    reason: error.message().to_owned(),
                })?
            }
        };
        let config = Self { roles, ..config };
        config.check()?;
        Ok(config)
    }

    /// What concerns sandboxes.
    pub fn sandboxes(&self) -> Settings {
        Settings {
            agent_socket: self.agent_socket.clone(),
            has_tls: !matches!(self.tls, Tls::Off),
            request_body_limit: self.request_body_limit,
            rate_limit: self.rate_limit,
            team_rate_limit: self.team_rate_limit,
            operator_rate_limit: self.operator_rate_limit,
            baseline: self.baseline,
            volume_size_gib: self.volume_size_gib,
            plans: self.plans.clone(),
            prices: self.prices.clone(),
            events: self.events,
            oidc: self.oidc.clone(),
            webhooks: self.team_webhooks.clone(),
            timing: self.timing,
        }
    }

    /// What concerns payments.
    pub fn payments(&self) -> sandpiper_payments::settings::Settings {
        sandpiper_payments::settings::Settings {
            request_body_limit: self.request_body_limit,
            rate_limit: self.rate_limit,
            operator_rate_limit: self.operator_rate_limit,
            payments: self.payments.clone(),
            webhooks: self.webhooks.clone(),
        }
    }

    /// The database: unless configured otherwise, a file of SQLite in the state folder.
    pub fn database(&self) -> DatabaseLocation {
        self.database.clone().unwrap_or_else(|| DatabaseLocation::Sqlite(self.state_dir.join("sandpiper.db")))
    }

    /// The key under which tenants' secrets are sealed.
    pub fn secrets_key_file(&self) -> PathBuf {
        self.secrets_key_file.clone().unwrap_or_else(|| self.state_dir.join("secrets.key"))
    }

    /// The key under which merchants' secret keys are sealed: unless configured otherwise, the same.
    pub fn merchant_secrets_key_file(&self) -> PathBuf {
        self.merchant_secrets_key_file.clone().unwrap_or_else(|| self.secrets_key_file())
    }

    /// The key files that the roles need.
    pub fn key_files(&self) -> impl Iterator<Item = PathBuf> {
        let sandboxes = self.roles.sandboxes.then(|| self.secrets_key_file());
        let payments = self.roles.payments.then(|| self.merchant_secrets_key_file());
        sandboxes.into_iter().chain(payments)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong =
            |key: &str, reason: &str| Err(ConfigError::Value { key: key.to_owned(), reason: reason.to_owned() });
        if self.roles.sandboxes {
            for plan in Plan::ALL {
                if let Some(problem) = self.plans.of(plan).problem() {
                    return wrong(&format!("plans.{plan}"), problem);
                }
            }
            if self.baseline.cpu == 0 || self.baseline.memory_mb == 0 {
                return wrong("baseline", "cpu and memory_mb must be at least 1");
            }
            if self.events.keep_days == 0 || self.events.keep_most == 0 {
                return wrong("events", "keep_days and keep_most must be at least 1");
            }
            if let Some((key, problem)) = self.oidc.as_ref().and_then(oidc::Settings::problem) {
                return wrong(key, problem);
            }
        }
        if self.roles.payments
            && let Some((key, problem)) = self.payments.problem()
        {
            return wrong(key, problem);
        }
        if let Some((key, problem)) = self.telemetry.problem() {
            return wrong(key, problem);
        }
        for (section, settings, is_used) in [
            ("webhooks", &self.webhooks, self.roles.payments),
            ("team_webhooks", &self.team_webhooks, self.roles.sandboxes),
        ] {
            if is_used && let Some((key, problem)) = settings.problem() {
                return wrong(&format!("{section}.{key}"), problem);
            }
        }
        if let Err(IngressError::Acme { key, problem }) = self.tls.validate() {
            return wrong(&format!("tls.acme.{key}"), problem);
        }
        if !matches!(Host::parse(&self.host), Ok(Host::Domain(_))) {
            return wrong("host", "must be a host name, without a port");
        }
        if let Some(origin) = self.cors_origins.iter().find(|origin| !is_origin(origin)) {
            return wrong(
                "cors_origins",
                &format!("{origin:?} is no origin; write it as https://host or https://host:port"),
            );
        }
        if self.volume_size_gib == 0 {
            return wrong("volume_size_gib", "must be at least 1");
        }
        if self.request_body_limit < 1024 {
            return wrong("request_body_limit", "must be at least 1024 bytes");
        }
        Ok(())
    }
}

/// Whether browsers would name the origin of a page so (RFC 6454, 6.2).
fn is_origin(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| url.origin().is_tuple() && url.origin().ascii_serialization() == text)
}

/// The line, counted from 1, that holds the byte at `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path), Roles::default())
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        let config = load("").unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:7070");
        assert_eq!(config.database().to_string(), "/var/lib/sandpiper/api/sandpiper.db");
    }

    #[test]
    fn a_collector_is_a_url_without_a_password() {
        assert!(load("[telemetry]\nendpoint = \"https://collector.example:4318/otlp\"\n").is_ok());
        for endpoint in ["collector:4318", "ftp://collector", "http://user:password@collector", ""] {
            let error = load(&format!("[telemetry]\nendpoint = {endpoint:?}\n")).unwrap_err().to_string();
            assert!(error.contains("telemetry.endpoint") && !error.contains("user:"), "{error}");
        }
        assert!(load("[telemetry]\ninterval_seconds = 0\n").is_err());
    }

    #[test]
    fn a_provider_is_asked_over_tls_or_on_this_machine() {
        let section = |issuer: &str| {
            format!(
                "[oidc]\nissuer = {issuer:?}\nclient_id = \"sandpiper\"\nname = \"Example\"\norigin = \"https://a.example\"\n"
            )
        };
        let settings = load(&section("http://127.0.0.1:3000")).unwrap().oidc.unwrap();
        assert_eq!((settings.sign_up, settings.scopes.len()), (false, 2));
        let error = load(&section("http://login.example.com")).unwrap_err();
        assert!(matches!(error, ConfigError::Value { ref key, .. } if key == "oidc.issuer"), "{error}");
        assert!(matches!(load("[oidc]\n"), Err(ConfigError::Parse { .. })));
    }

    #[test]
    fn paths_follow_the_state_folder_unless_given() {
        let config = load("state_dir = \"/srv/s\"\ndatabase = \"/db/x.db\"\n").unwrap();
        assert_eq!(config.database().to_string(), "/db/x.db");
        assert_eq!(config.secrets_key_file(), Path::new("/srv/s/secrets.key"));
    }

    #[test]
    fn no_message_shows_the_password_of_a_database() {
        let config = load("database = \"postgres://sp:geheim@db.example.test/sp\"\n").unwrap();
        assert!(!format!("{config:?}").contains("geheim"));
        for text in [
            "\ndatabase = \"mysql://sp:geheim@db.example.test/sp\"\n",
            "\ndatabase = \"postgres://sp:geheim@db.example.test/sp\n",
        ] {
            let message = load(text).unwrap_err().to_string();
            assert!(message.contains("line 2") && !message.contains("geheim"), "{message}");
        }
    }

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for origin in ["https://console.example.com", "http://localhost:3000"] {
            load(&format!("cors_origins = [{origin:?}]\n")).unwrap();
        }
        for origin in ["*", "null", "console.example.com", "https://console.example.com/", "https://a.example:443"] {
            let error = load(&format!("cors_origins = [{origin:?}]\n")).unwrap_err();
            assert!(matches!(error, ConfigError::Value { ref key, .. } if key == "cors_origins"), "{error}");
        }
    }

    #[test]
    fn prices_are_given_whole_and_as_text() {
        let prices = "[prices]\ncurrency = \"USD\"\nvcpu_second = \"0.5\"\nmemory_gib_second = \"1\"\n";
        let whole = load(&format!("{prices}storage_gib_hour = \"0.25\"\n")).unwrap().prices.unwrap();
        assert_eq!((whole.vcpu_second.to_string(), whole.storage_gib_hour.to_string()), ("0.5".into(), "0.25".into()));
        assert_eq!(load("").unwrap().prices, None);
        for wrong in ["", "storage_gib_hour = 0.25\n", "storage_gib_hour = \"1e3\"\n"] {
            assert!(matches!(load(&format!("{prices}{wrong}")), Err(ConfigError::Parse { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_misspelt_key_and_an_impossible_plan_are_refused() {
        assert!(matches!(load("listne = \"127.0.0.1:1\"\n"), Err(ConfigError::Parse { .. })));
        let plan = "[plans.basic]\ncpu_values = []\nmemory_mb_min = 1\nmemory_mb_max = 2\nmemory_mb_step = 1\n\
                    root_disk_gib = 1\nmax_timeout = 1\nquota = { sandboxes = 1, cpu = 1, memory_mb = 1 }\n";
        assert!(matches!(load(plan), Err(ConfigError::Value { key, .. }) if key == "plans.basic"));
        let events = load("[events]\nkeep_days = 0\n");
        assert!(matches!(events, Err(ConfigError::Value { key, .. }) if key == "events"));
    }
}
