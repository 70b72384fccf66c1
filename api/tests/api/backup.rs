//! `sandpiper-api backup`, `restore` and `check`, on a database that a process serves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sandpiper_db::testing::TestDatabase;
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{Server, run, send, stdout, write_config};
use crate::support::agent::StubAgent;

/// A process that serves, with a team's key.
struct Served {
    folder: TempDir,
    database: TestDatabase,
    key: String,
    server: Server,
    _agent: StubAgent,
}

impl Served {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
        let database = TestDatabase::new().await;
        write_config(&config, &socket, &database);
        let agent = StubAgent::start(&socket);
        let made =
            run(&["key", "create", "--config", config.to_str().unwrap(), "--team", "acme", "--capability", "write"]);
        let key = stdout(&made).trim().to_owned();
        let server = Server::start(&config);
        Self { folder, database, key, server, _agent: agent }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("api.toml")
    }

    /// A sandbox that was given a secret; its id.
    fn create(&self) -> String {
        create(&self.server.address, &self.key)
    }

    fn back_up(&self, to: &Path) -> Value {
        let config = self.config();
        let made = run(&["backup", "--json", "--config", config.to_str().unwrap(), "--to", to.to_str().unwrap()]);
        serde_json::from_str(&stdout(&made)).unwrap()
    }

    fn is_sqlite(&self) -> bool {
        !self.database.location.contains("://")
    }
}

fn create(address: &str, key: &str) -> String {
    let header = format!("Authorization: Bearer {key}\r\n");
    let body = r#"{"template": "base", "envs": {"S": "PASSPHRASE-OF-A-TENANT"}}"#;
    let created = send(address, "POST", "/v1/sandboxes", &header, body).unwrap();
    created.split("\"id\":\"").nth(1).unwrap_or_else(|| panic!("{created}")).split('"').next().unwrap().to_owned()
}

/// A configuration of another host, on which nothing is yet; what it names is all in `folder`.
fn elsewhere(folder: &Path) -> PathBuf {
    let config = folder.join("api.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nmetrics_listen = \"127.0.0.1:0\"\nstate_dir = {:?}\nagent_socket = {:?}\n",
        folder.join("state"),
        folder.join("agent.sock")
    );
    fs::write(&config, text).unwrap();
    config
}

fn restore(config: &Path, from: &Path) -> Result<String, String> {
    let ran = run(&["restore", "--config", config.to_str().unwrap(), "--from", from.to_str().unwrap()]);
    let (stdout, stderr) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    if ran.status.success() { Ok(stdout) } else { Err(stderr) }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn what_was_acknowledged_before_a_backup_is_there_after_its_restore_elsewhere() {
    let served = Served::new().await;
    if !served.is_sqlite() {
        return;
    }
    let before = served.create();
    let backup = served.folder.path().join("backup");

    // Somebody goes on writing all the while, as often as the key's rate allows.
    let stop = AtomicBool::new(false);
    let manifest = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let path = format!("/v1/sandboxes/{before}");
            let writes = (0..80).take_while(|_| !stop.load(Ordering::Relaxed)).map(|number| {
                let body = format!(r#"{{"metadata": {{"number": "{number}"}}}}"#);
                served.server.send("PATCH", &path, &served.key, &body)
            });
            writes.collect::<Vec<_>>()
        });
        let manifest = served.back_up(&backup);
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap();
        assert!(
            !written.is_empty() && written.iter().all(|response| response.starts_with("HTTP/1.1 200")),
            "{written:?}"
        );
        manifest
    });

    assert_eq!(mode(&backup), 0o700);
    let names: Vec<_> =
        manifest["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sandpiper.db", "secrets.key"]);
    for name in [&names[..], &["backup.json"]].concat() {
        assert_eq!(mode(&backup.join(name)), 0o600, "{name}");
    }
    let Served { key, server, .. } = &served;
    assert!(server.get(&format!("/v1/sandboxes/{before}"), key).starts_with("HTTP/1.1 200"));

    let other = tempfile::tempdir().unwrap();
    let config = elsewhere(other.path());
    let _agent = StubAgent::start(&other.path().join("agent.sock"));
    restore(&config, &backup).unwrap();

    for name in ["sandpiper.db", "secrets.key"] {
        assert_eq!(mode(&other.path().join("state").join(name)), 0o600, "{name}");
    }
    // What is sealed opens with the keys that came with it: it can be sealed anew.
    stdout(&run(&["key", "rotate-secrets", "--config", config.to_str().unwrap()]));
    let restored = Server::start(&config);
    assert!(restored.get("/v1/sandboxes", key).starts_with("HTTP/1.1 200"), "the key is good there");
    let audit = run(&["audit", "--json", "--config", config.to_str().unwrap(), "--limit", "1000"]);
    assert!(stdout(&audit).contains(&before));
    create(&restored.address, key);
    restored.end();
}

#[tokio::test]
async fn a_restore_overwrites_nothing_and_takes_nothing_that_was_changed() {
    let served = Served::new().await;
    if !served.is_sqlite() {
        return;
    }
    served.create();
    let backup = served.folder.path().join("backup");
    served.back_up(&backup);
    let exists = run(&["backup", "--config", served.config().to_str().unwrap(), "--to", backup.to_str().unwrap()]);
    assert!(!exists.status.success() && String::from_utf8_lossy(&exists.stderr).contains("is there already"));
    let occupied = restore(&served.config(), &backup).unwrap_err();
    assert!(occupied.contains("nothing is overwritten"), "{occupied}");

    let other = tempfile::tempdir().unwrap();
    let config = elsewhere(other.path());
    let database = fs::read(backup.join("sandpiper.db")).unwrap();
    let mut flipped = database.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [flipped, database[1..].to_vec()] {
        fs::write(backup.join("sandpiper.db"), damaged).unwrap();
        let refused = restore(&config, &backup).unwrap_err();
        assert!(refused.contains("sandpiper.db") && refused.contains("is not what was backed up"), "{refused}");
    }
    fs::write(backup.join("sandpiper.db"), &database).unwrap();

    // As a kill leaves it, between keys and database.
    fs::create_dir(other.path().join("state")).unwrap();
    fs::copy(backup.join("secrets.key"), other.path().join("state/secrets.key")).unwrap();
    restore(&config, &backup).unwrap();
    assert_eq!(fs::read(other.path().join("state/sandpiper.db")).unwrap(), database);
    assert!(restore(&config, &backup).is_err(), "now it is there");
}

#[tokio::test]
async fn a_backup_of_a_newer_program_or_for_other_settings_is_refused_with_what_to_do() {
    let served = Served::new().await;
    if !served.is_sqlite() {
        return;
    }
    served.create();
    let backup = served.folder.path().join("backup");
    let manifest = served.back_up(&backup);
    let other = tempfile::tempdir().unwrap();
    let config = elsewhere(other.path());
    let write = |manifest: &Value| fs::write(backup.join("backup.json"), manifest.to_string()).unwrap();

    let mut newer = manifest.clone();
    newer["schema"] = (manifest["schema"].as_i64().unwrap() + 1).into();
    newer["program"] = "9.9.9".into();
    write(&newer);
    let refused = restore(&config, &backup).unwrap_err();
    assert!(refused.contains("install the version that made it, 9.9.9"), "{refused}");

    let mut format = manifest.clone();
    format["format_version"] = 2.into();
    write(&format);
    assert!(restore(&config, &backup).unwrap_err().contains("format version 2"));

    let mut outside = manifest.clone();
    outside["files"][0]["name"] = "../../etc/passwd".into();
    write(&outside);
    assert!(restore(&config, &backup).unwrap_err().contains("is no backup"));

    write(&manifest);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}merchant_secrets_key_file = {:?}\n", other.path().join("m.key"))).unwrap();
    assert!(restore(&config, &backup).unwrap_err().contains("merchant_secrets_key_file"));
    assert!(!other.path().join("state").exists(), "nothing was put in place");
}

#[tokio::test]
async fn of_postgresql_the_keys_are_backed_up_and_how_to_copy_the_records_is_said() {
    let served = Served::new().await;
    if served.is_sqlite() {
        sandpiper_skip::skipped("a backup of PostgreSQL", "it is PostgreSQL's; the run on PostgreSQL has it");
        return;
    }
    served.create();
    let backup = served.folder.path().join("backup");

    let config = served.config();
    let made = run(&["backup", "--config", config.to_str().unwrap(), "--to", backup.to_str().unwrap()]);

    assert!(made.status.success() && String::from_utf8_lossy(&made.stderr).contains("pg_dump"));
    let key = served.folder.path().join("state/secrets.key");
    let before = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    restore(&config, &backup).unwrap();
    assert_eq!(fs::read(&key).unwrap(), before);
    let other = tempfile::tempdir().unwrap();
    assert!(restore(&elsewhere(other.path()), &backup).unwrap_err().contains("names another kind"));
}

#[tokio::test]
async fn a_check_says_what_would_keep_the_api_from_serving_and_makes_nothing() {
    let empty = tempfile::tempdir().unwrap();
    let config = elsewhere(empty.path());
    let checked = run(&["check", "--json", "--config", config.to_str().unwrap()]);
    let checks: Value = serde_json::from_str(&stdout(&checked)).unwrap();
    let verdicts: Vec<_> = checks.as_array().unwrap().iter().map(|check| check["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["ok", "warn", "warn"], "{checks}");
    assert!(!empty.path().join("state").exists());

    let served = Served::new().await;
    let config = served.config();
    let check = || run(&["check", "--config", config.to_str().unwrap()]);
    assert!(!stdout(&check()).contains("Warn"), "{}", stdout(&check()));
    fs::set_permissions(served.folder.path().join("state/secrets.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let exposed = check();
    assert!(!exposed.status.success() && String::from_utf8_lossy(&exposed.stdout).contains("chmod 600"));

    fs::write(&config, "listne = 1\n").unwrap();
    let misspelt = check();
    assert!(!misspelt.status.success() && String::from_utf8_lossy(&misspelt.stdout).contains("listne"));
}
