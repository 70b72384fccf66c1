//! `sandpiper-api check`: what would keep `serve` from starting, found without changing anything.

use std::path::Path;

use anyhow::bail;
use sandpiper_accounts::oidc;
use sandpiper_db::schema::{self, Untouched};
use sandpiper_db::secrets::{self, KeyFileError};
use sandpiper_db::{DatabaseLocation, StoreError};
use sandpiper_protocol::error_chain::chain;
use serde::Serialize;

use super::{ConfigArgument, block_on};
use crate::config::Config;
use crate::privileges;
use crate::settings::Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It works, and somebody should know.
    Warn,
    Fail,
}

/// One thing that was looked at. `sandpiper doctor` reads these.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Prints what was found.
pub(super) fn run(argument: &ConfigArgument, json: bool) -> anyhow::Result<()> {
    let checks = match argument.load() {
        Ok(config) => {
            privileges::drop_privileges(&config)?;
            let mut checks = vec![Check::ok("api settings", "valid")];
            let mut files: Vec<_> = config.key_files().collect();
            files.dedup();
            checks.extend(files.iter().map(|file| key_file(file)));
            checks.push(block_on(async { Ok(database(&config).await) })?);
            if config.roles.sandboxes {
                checks.extend(block_on(async { Ok(provider(&config.sandboxes()).await) })?);
            }
            checks
        }
        Err(error) => vec![Check::fail("api settings", format!("{error:#}"), "correct what it says")],
    };
    if json {
        println!("{}", serde_json::to_string(&checks)?);
    } else {
        for Check { name, verdict, found, fix } in &checks {
            println!(
                "{verdict:?}: {name}: {found}{}",
                fix.as_ref().map(|fix| format!("\n  -> {fix}")).unwrap_or_default()
            );
        }
    }
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail).count();
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

fn key_file(path: &Path) -> Check {
    const NAME: &str = "secrets key";
    if !path.exists() {
        return Check::warn(
            NAME,
            format!("{} is not there", path.display()),
            "the first `serve` makes it; where there are records already, restore it from a backup before, or what is sealed is lost",
        );
    }
    match secrets::Vault::open(path) {
        Ok(_) => Check::ok(NAME, format!("{} is good, and closed to others", path.display())),
        Err(error @ KeyFileError::Exposed { .. }) => {
            Check::fail(NAME, error.to_string(), format!("chmod 600 {}", path.display()))
        }
        Err(error) => Check::fail(NAME, chain(&error), "restore it from a backup"),
    }
}

async fn database(config: &Config) -> Check {
    let location = config.database();
    let version = async {
        let mut database = Untouched::open(&location).await?;
        let version = database.version().await?;
        database.close().await?;
        Ok(version)
    };
    judge(&location, version.await)
}

fn judge(location: &DatabaseLocation, version: Result<Option<i64>, StoreError>) -> Check {
    const NAME: &str = "database";
    let newest = schema::newest(location);
    match version {
        Ok(Some(version)) if version == newest => {
            Check::ok(NAME, format!("{location} has version {version} of the tables"))
        }
        Ok(Some(version)) if version > newest => Check::fail(
            NAME,
            format!("{location} has version {version} of the tables, and this program knows {newest}"),
            "install the newer version that made it, or restore a backup from before",
        ),
        Ok(Some(version)) => Check::warn(
            NAME,
            format!("{location} has version {version} of the tables"),
            format!(
                "the next `serve` brings it to {newest}; an older program cannot use it from then on, so back it up"
            ),
        ),
        Ok(None) => Check::warn(NAME, format!("{location} has no tables yet"), "the first `serve` makes them"),
        Err(StoreError::Missing { path }) => {
            Check::warn(NAME, format!("there is none at {} yet", path.display()), "the first `serve` makes it")
        }
        Err(error) => Check::fail(
            NAME,
            format!("{location}: {}", chain(&error)),
            "start the server, or correct `database` in the settings; see docs/operators.md, Database",
        ),
    }
}

/// Whether people can sign in at the provider of OpenID Connect, where there is one.
async fn provider(settings: &Settings) -> Option<Check> {
    const NAME: &str = "sign-in at a provider";
    let provider = match settings.provider() {
        Ok(provider) => provider?,
        Err(error) => {
            let fix = "correct `oidc` in the settings; see docs/accounts.md, Signing in at a provider";
            return Some(Check::fail(NAME, chain(&error), fix));
        }
    };
    let oidc::Settings { issuer, client_secret_file, .. } = &provider.settings;
    let client = if client_secret_file.is_some() { "a client with a secret" } else { "a public client" };
    let redirect = provider.redirect_url();
    Some(match provider.reach().await {
        Ok(()) => {
            Check::ok(NAME, format!("{issuer} responds; to it, this is {client} whose redirect URI is {redirect}"))
        }
        Err(error) => Check::warn(
            NAME,
            format!("{issuer}: {}", chain(&error)),
            "people sign in with passwords alone until it responds; correct `oidc.issuer` if it is another",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_judged_by_its_version() {
        let location: DatabaseLocation = "/srv/api.db".parse().unwrap();
        let newest = schema::newest(&location);
        let verdict = |version| judge(&location, version).verdict;
        assert_eq!(verdict(Ok(Some(newest))), Verdict::Ok);
        assert_eq!(verdict(Ok(Some(newest - 1))), Verdict::Warn);
        assert_eq!(verdict(Ok(None)), Verdict::Warn);
        assert_eq!(verdict(Err(StoreError::Missing { path: "/srv/api.db".into() })), Verdict::Warn);
        let newer = judge(&location, Ok(Some(newest + 1)));
        assert_eq!(newer.verdict, Verdict::Fail);
        assert!(newer.found.contains(&format!("knows {newest}")), "{newer:?}");
        assert_eq!(verdict(Err(StoreError::Unwritten)), Verdict::Fail);
    }

    #[tokio::test]
    async fn a_provider_that_is_away_is_a_warning_and_a_secret_that_is_missing_a_failure() {
        let with = |oidc: Option<oidc::Settings>| Settings { oidc, ..Config::default().sandboxes() };
        assert_eq!(provider(&with(None)).await, None);
        let settings = oidc::Settings {
            // Nothing listens there.
            issuer: "http://127.0.0.1:1".to_owned(),
            client_id: "sandpiper".to_owned(),
            client_secret_file: None,
            origin: "https://sandpiper.example.com".to_owned(),
            name: "Example".to_owned(),
            scopes: Vec::new(),
            sign_up: false,
            allowed_domains: Vec::new(),
        };
        let away = provider(&with(Some(settings.clone()))).await.unwrap();
        assert_eq!(away.verdict, Verdict::Warn);
        assert!(away.found.starts_with("http://127.0.0.1:1: "), "{away:?}");
        let missing = oidc::Settings { client_secret_file: Some("/nonexistent/oidc.secret".into()), ..settings };
        let failed = provider(&with(Some(missing))).await.unwrap();
        assert_eq!(failed.verdict, Verdict::Fail);
        assert!(failed.found.contains("/nonexistent/oidc.secret"), "{failed:?}");
    }

    #[test]
    fn a_key_file_that_others_read_is_a_failure_and_one_that_is_missing_a_warning() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        assert_eq!(key_file(&path).verdict, Verdict::Warn);
        assert!(!path.exists(), "nothing is made");
        secrets::Vault::open(&path).unwrap();
        assert_eq!(key_file(&path).verdict, Verdict::Ok);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let exposed = key_file(&path);
        assert_eq!((exposed.verdict, exposed.fix), (Verdict::Fail, Some(format!("chmod 600 {}", path.display()))));
    }
}
