//! `sandpiper-api key rotate-secrets`, on a database that a process has served.

use std::fs;
use std::path::{Path, PathBuf};

use sandpiper_api::store::Store;
use sandpiper_db::Database;
use sandpiper_db::secrets::{Vault, add_key};
use sandpiper_db::testing::TestDatabase;
use tempfile::TempDir;

use crate::command::{Server, run, send, stdout, write_config};
use crate::support::agent::StubAgent;

/// A host with a sandbox that was given a secret.
struct Sealed {
    folder: TempDir,
    database: TestDatabase,
    sandbox: String,
    _agent: StubAgent,
}

const SECRET: &str = "PASSPHRASE-OF-A-TENANT";

impl Sealed {
    async fn new() -> (Self, Server) {
        let folder = tempfile::tempdir().unwrap();
        let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
        let database = TestDatabase::new().await;
        write_config(&config, &socket, &database);
        let agent = StubAgent::start(&socket);
        let path = config.to_str().unwrap();
        let key = stdout(&run(&["key", "create", "--config", path, "--team", "acme", "--capability", "write"]));
        let server = Server::start(&config);
        let body = format!(r#"{{"template": "base", "envs": {{"S": "{SECRET}"}}}}"#);
        let header = format!("Authorization: Bearer {}\r\n", key.trim());
        let created = send(&server.address, "POST", "/v1/sandboxes", &header, &body).unwrap();
        let sandbox = created.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        (Self { folder, database, sandbox, _agent: agent }, server)
    }

    fn key_file(&self) -> PathBuf {
        self.folder.path().join("state/secrets.key")
    }

    fn rotate(&self) -> std::process::Output {
        run(&["key", "rotate-secrets", "--config", self.folder.path().join("api.toml").to_str().unwrap()])
    }

    /// Whether the secret opens with the keys of this file.
    async fn opens_with(&self, file: &Path) -> bool {
        let database = Database::open(&self.database.location.parse().unwrap()).await.unwrap();
        let sealed = Store::new(database.clone()).sandboxes.sealed_envs(&self.sandbox).await.unwrap().unwrap();
        database.close().await;
        let opened = Vault::open(file).unwrap().unseal(&self.sandbox, &sealed);
        opened.is_ok_and(|plain| String::from_utf8_lossy(&plain).contains(SECRET))
    }

    /// A copy of the key file, as a thief of a backup has it.
    fn copy(&self) -> PathBuf {
        let copy = self.folder.path().join("copy.key");
        fs::copy(self.key_file(), &copy).unwrap();
        copy
    }
}

#[tokio::test]
async fn after_a_rotation_the_old_key_file_opens_nothing_and_the_new_one_all() {
    let (host, server) = Sealed::new().await;
    let old = host.copy();
    assert!(host.opens_with(&old).await);
    server.end();

    stdout(&host.rotate());

    assert!(!host.opens_with(&old).await && host.opens_with(&host.key_file()).await);
    assert_eq!(fs::read_to_string(host.key_file()).unwrap().lines().count(), 1);
    Server::start(&host.folder.path().join("api.toml")).end();
}

#[tokio::test]
async fn a_rotation_that_was_killed_is_finished_by_the_next() {
    let (host, server) = Sealed::new().await;
    server.end();
    // After the first of its steps.
    add_key(&host.key_file()).unwrap();
    let old = host.copy();

    stdout(&host.rotate());

    assert!(!host.opens_with(&old).await && host.opens_with(&host.key_file()).await);
}

#[tokio::test]
async fn nothing_is_rotated_while_a_process_serves() {
    let (host, server) = Sealed::new().await;
    let before = fs::read(host.key_file()).unwrap();

    let refused = host.rotate();

    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("serve"), "{text}");
    assert_eq!(fs::read(host.key_file()).unwrap(), before);
    server.end();
}

#[tokio::test]
async fn no_key_is_dropped_while_something_opens_under_none() {
    let (host, server) = Sealed::new().await;
    server.end();
    let lost = host.copy();
    fs::remove_file(host.key_file()).unwrap();
    Vault::open(&host.key_file()).unwrap();

    let refused = host.rotate();

    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains(&host.sandbox), "{text}");
    let keys = fs::read_to_string(host.key_file()).unwrap();
    assert_eq!(keys.lines().count(), 2);
    // As it says.
    fs::write(host.key_file(), keys + &fs::read_to_string(&lost).unwrap()).unwrap();
    stdout(&host.rotate());
    assert!(host.opens_with(&host.key_file()).await && !host.opens_with(&lost).await);
}
