//! `sandpiper-api operator-key` and `sandpiper-api import`, as an operator types them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sandpiper_accounts::operators::keys;
use sandpiper_db::Database;
use sandpiper_db::testing::TestDatabase;
use sandpiper_payments::store::Store;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::shop::MARKETS;

/// A configuration with a database of its own.
struct Desk {
    folder: TempDir,
    database: TestDatabase,
}

impl Desk {
    async fn new() -> Self {
        let (folder, database) = (tempfile::tempdir().unwrap(), TestDatabase::new().await);
        let (state, location) = (folder.path().join("state"), &database.location);
        let text = format!("state_dir = {state:?}\ndatabase = {location:?}\n");
        std::fs::write(folder.path().join("api.toml"), text).unwrap();
        Self { folder, database }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn run(&self, command: &[&str], more: &[&Path]) -> Output {
        let mut process = Command::new(env!("CARGO_BIN_EXE_sandpiper-api"));
        process.args(command).arg("--config").arg(self.folder.path().join("api.toml")).args(more).output().unwrap()
    }

    fn succeed(&self, command: &[&str], more: &[&Path]) -> String {
        let output = self.run(command, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn fail(&self, command: &[&str], more: &[&Path]) -> String {
        let output = self.run(command, more);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    async fn store(&self) -> Store {
        Store::new(Database::open(&self.database.location.parse().unwrap()).await.unwrap())
    }
}

#[tokio::test]
async fn an_operator_key_is_made_listed_and_ended() {
    let desk = Desk::new().await;
    let plain = desk.succeed(&["operator-key", "create", "--name", "first"], &[]);
    let made: Value = serde_json::from_str(&desk.succeed(&["operator-key", "create", "--json"], &[])).unwrap();
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    let store = desk.store().await;
    for key in [plain.trim(), key] {
        assert!(key.starts_with("opk_") && key.len() == 44);
        assert!(store.operator_keys.active(&keys::hash(key).unwrap()).await.unwrap().is_some());
    }

    desk.succeed(&["operator-key", "revoke", id], &[]);

    assert!(store.operator_keys.active(&keys::hash(key).unwrap()).await.unwrap().is_none());
    let list = desk.succeed(&["operator-key", "ls", "--json"], &[]);
    assert!(!list.contains("opk_"));
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["keys"][0]["name"], &list["keys"][0]["revoked_at"]), (&Value::from("first"), &Value::Null));
    assert!(list["keys"][1]["revoked_at"].is_string());
    assert!(desk.fail(&["operator-key", "revoke", id], &[]).contains("operator-key ls"));
    let audit = desk.succeed(&["audit", "--resource", id], &[]);
    assert_eq!(audit.lines().filter(|line| line.contains("sandpiper-api operator-key")).count(), 2, "{audit}");
}

#[tokio::test]
async fn files_are_imported_and_mistakes_printed_with_their_places() {
    let desk = Desk::new().await;
    let (markets, banks) =
        (desk.file("markets.json", MARKETS), desk.file("banks.csv", "countryCode,code,name\nKE,9,Nine\n"));
    assert_eq!(desk.succeed(&["import", "--dry-run"], &[&markets]), "Would import 4 markets, 4 banks, 5 operators\n");
    let store = desk.store().await;
    assert!(store.discovery.markets().await.unwrap().is_empty());
    assert_eq!(desk.succeed(&["import"], &[&markets]), "Imported 4 markets, 4 banks, 5 operators\n");
    assert_eq!(desk.succeed(&["import", "--kind", "banks"], &[&banks]), "Imported 0 markets, 1 banks, 0 operators\n");
    assert_eq!(store.discovery.banks_in("KE").await.unwrap().len(), 3);

    let broken = desk.file("broken.csv", "countryCode,code,name\nKE,10,Ten\nke,11,\n");
    let said = desk.fail(&["import", "--kind", "banks"], &[&broken]);
    for place in
        ["broken.csv:3:1: banks[1].countryCode must be", "broken.csv:3:7: banks[1].name is missing", "errors: 2"]
    {
        assert!(said.contains(place), "{said}");
    }
    assert_eq!(store.discovery.banks_in("KE").await.unwrap().len(), 3);
    for (command, file, explanation) in [
        (vec!["import"], &banks, "--kind"),
        (vec!["import", "--kind", "banks"], &markets, "--kind"),
        (vec!["import"], &desk.folder.path().join("banks.txt"), ".csv"),
        (vec!["import"], &desk.folder.path().join("absent.json"), "absent.json"),
    ] {
        let said = desk.fail(&command, &[file]);
        assert!(said.contains(explanation), "{said}");
    }
}
