//! The real `sandpiper-api`, as it was built beside this program.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sqlx::{AnyConnection, Connection as _};

use crate::connection::Connection;

/// Where its data is.
pub(crate) enum Database {
    /// A file, on a disk.
    Sqlite,
    /// A new database on the server at this URL.
    Postgres(String),
}

impl Database {
    /// All that can be measured here, with names; what cannot is said.
    pub(crate) fn all(bench: &str) -> Vec<(&'static str, Self)> {
        let mut all = vec![("sqlite", Self::Sqlite)];
        match std::env::var("SANDPIPER_TEST_POSTGRES") {
            Ok(url) => all.push(("postgres", Self::Postgres(url))),
            Err(_) => eprintln!("SKIPPED: {bench} on PostgreSQL: SANDPIPER_TEST_POSTGRES names no server"),
        }
        all
    }

    /// What the API's configuration says of it.
    fn location(&self, folder: &Path) -> anyhow::Result<String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let Self::Postgres(server) = self else {
            return Ok(folder.join("sandpiper.db").display().to_string());
        };
        let name = format!("bench_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let made = Command::new("createdb").arg(format!("--maintenance-db={server}")).arg(&name).output()?;
        ensure!(made.status.success(), "no database: {}", String::from_utf8_lossy(&made.stderr));
        let mut url: reqwest::Url = server.parse()?;
        url.set_path(&name);
        Ok(url.into())
    }
}

/// How the API delivers webhooks.
#[derive(Clone, Copy)]
pub(crate) struct Webhooks<'a> {
    /// Certificate of whom they may go to on this machine.
    pub(crate) authority: &'a str,
    /// Attempts at a time.
    pub(crate) slots: u32,
}

/// The process; killed when this is dropped, and its files removed.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    /// An operator's key.
    pub(crate) operator: String,
    /// A URL of PostgreSQL, or the path of SQLite's file.
    database: String,
    child: Child,
    folder: tempfile::TempDir,
}

impl Api {
    /// Starts it without rate limits.
    pub(crate) async fn start(database: &Database, webhooks: Option<Webhooks<'_>>) -> anyhow::Result<Self> {
        // Not the folder for temporary files, which often is no disk: what a commit costs is to be measured.
        let folder = tempfile::Builder::new().prefix("sandpiper-bench-").tempdir_in("/var/tmp")?;
        let database = database.location(folder.path())?;
        configure(folder.path(), &database, webhooks)?;
        let operator = make_key(folder.path(), &["operator-key", "create"])?;
        let mut command = Command::new(program()?);
        command.args(["serve", "--config"]).arg(config(folder.path())).env("NO_COLOR", "1").stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let log = child.stderr.take().context("no log")?;
        let served = tokio::task::spawn_blocking(move || find_address(log)).await?;
        let api = |address| Self { address, operator, database, child, folder };
        served.map(api)
    }

    /// The JSON that answers a request.
    pub(crate) async fn call(&self, method: &str, path: &str, key: &str, body: &Value) -> anyhow::Result<Value> {
        let mut connection = Connection::open(self.address).await?;
        Ok(serde_json::from_slice(connection.ask(method, path, key, &body.to_string()).await?)?)
    }

    /// A new merchant with these markets: its id.
    pub(crate) async fn merchant(&self, name: &str, markets: &[Value]) -> anyhow::Result<String> {
        let merchant = json!({"name": name, "markets": {"live": markets}});
        text(&self.call("POST", "/operator/v1/merchants", &self.operator, &merchant).await?, "id")
    }

    /// A new live key of a merchant, `public` or `secret`.
    pub(crate) async fn key(&self, merchant: &str, kind: &str) -> anyhow::Result<String> {
        let path = format!("/operator/v1/merchants/{merchant}/keys");
        text(&self.call("POST", &path, &self.operator, &json!({"realm": "live", "kind": kind})).await?, "key")
    }

    /// A new key of a team of sandboxes, which is made where there is none of this name.
    pub(crate) fn team_key(&self, team: &str) -> anyhow::Result<String> {
        make_key(self.folder.path(), &["key", "create", "--team", team, "--capability", "write"])
    }

    /// Where it looks for its agent.
    pub(crate) fn agent_socket(&self) -> PathBuf {
        agent_socket(self.folder.path())
    }

    /// A new invitation to a team as its owner.
    pub(crate) fn invitation(&self, team: &str) -> anyhow::Result<String> {
        make_key(self.folder.path(), &["team", "invite", team, "--role", "owner"])
    }

    /// A connection to its database.
    pub(crate) async fn connect(&self) -> anyhow::Result<AnyConnection> {
        sqlx::any::install_default_drivers();
        let scheme = if self.database.starts_with('/') { "sqlite://" } else { "" };
        Ok(AnyConnection::connect(&format!("{scheme}{}", self.database)).await?)
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Fails when the process has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text in a field of an answer.
pub(crate) fn text(answer: &Value, field: &str) -> anyhow::Result<String> {
    Ok(answer[field].as_str().with_context(|| format!("no {field} in {answer}"))?.to_owned())
}

fn program() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("sandpiper-api");
    ensure!(program.is_file(), "{} is not built: scripts/build", program.display());
    Ok(program)
}

/// The key that a command makes.
fn make_key(folder: &Path, command: &[&str]) -> anyhow::Result<String> {
    let made = Command::new(program()?).args(command).arg("--config").arg(config(folder)).output()?;
    ensure!(made.status.success(), "no key: {}", String::from_utf8_lossy(&made.stderr));
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

/// The file of the configuration.
fn config(folder: &Path) -> PathBuf {
    folder.join("api.toml")
}

fn agent_socket(folder: &Path) -> PathBuf {
    folder.join("agent.sock")
}

fn configure(folder: &Path, database: &str, webhooks: Option<Webhooks<'_>>) -> anyhow::Result<()> {
    let mut text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {folder:?}\nagent_socket = {:?}\ndatabase = {database:?}\n\
         [rate_limit]\nper_second = 1000000\nburst = 1000000\n\
         [team_rate_limit]\nper_second = 1000000\nburst = 1000000\n\
         [operator_rate_limit]\nper_second = 1000000\nburst = 1000000\n",
        agent_socket(folder)
    );
    if let Some(Webhooks { authority, slots }) = webhooks {
        let file = folder.join("authority.pem");
        std::fs::write(&file, authority)?;
        text +=
            &format!("[webhooks]\nconcurrency = {slots}\nallow_addresses = [\"127.0.0.0/8\"]\nca_file = {file:?}\n");
    }
    Ok(std::fs::write(config(folder), text)?)
}

/// Reads the log up to where it says that it serves, and the rest on a thread of its own, so that the process never waits
/// for room to log.
fn find_address(log: std::process::ChildStderr) -> anyhow::Result<SocketAddr> {
    let mut lines = BufReader::new(log).lines().map_while(Result::ok);
    let mut before = Vec::new();
    let address = lines.find_map(|line| {
        let address = line.split_once("serving address=").map(|(_, rest)| rest.trim().to_owned());
        before.push(line);
        address
    });
    let address = address.with_context(|| format!("the API did not start: {}", before.join("\n")))?;
    std::thread::spawn(move || lines.for_each(drop));
    Ok(address.parse()?)
}
