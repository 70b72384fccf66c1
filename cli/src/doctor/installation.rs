//! The host that is set up here: what agent and API are started with, and what they keep.
//!
//! The package's settings are in `/etc/sandpiper`, those that `sandpiper up` writes in its state folder. Where there are neither,
//! there is nothing to check yet. What is wrong with a file of settings its own program says, which this runs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use toml::{Table, Value};

use super::checks::{Check, Verdict, sibling};

/// Where the package has its settings.
pub(crate) const SETTINGS_DIR: &str = "/etc/sandpiper";

/// Files of the agent that nobody else may read.
const AGENT_KEYS: [&str; 2] = ["record.key", "session.key"];

/// Where the settings are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Installation {
    pub(crate) agent: Option<PathBuf>,
    pub(crate) api: Option<PathBuf>,
    /// By the package: systemd starts it.
    pub(crate) is_package: bool,
}

impl Installation {
    pub(crate) fn find(settings: &Path, state: &Path) -> Self {
        let there = |path: PathBuf| path.is_file().then_some(path);
        let is_package = settings.join("agent.toml").is_file();
        let (agent, api) = if is_package {
            (settings.join("agent.toml"), settings.join("api.toml"))
        } else {
            (state.join("agent.toml"), state.join("api/api.toml"))
        };
        Self { agent: there(agent), api: there(api), is_package }
    }

    /// What the agent is set to use as the guest kernel.
    pub(crate) fn kernel(&self) -> Option<PathBuf> {
        let settings: Table = toml::from_str(&fs::read_to_string(self.agent.as_ref()?).ok()?).ok()?;
        settings.get("kernel").and_then(Value::as_str).map(PathBuf::from)
    }
}

/// What stands for a template in the agent's state folder, `state`: the record of one of its versions.
pub(crate) fn imported(state: &Path, slug: &str) -> Option<PathBuf> {
    let manifests =
        fs::read_dir(state.join("templates")).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("template.json")));
    let has_slug = |manifest: &PathBuf| {
        let text = fs::read(manifest).unwrap_or_default();
        serde_json::from_slice(&text).is_ok_and(|version: serde_json::Value| version["slug"] == slug)
    };
    manifests.into_iter().find(has_slug)
}

pub(super) fn checks(installation: &Installation, state: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    if let (Some(file), Some(program)) = (&installation.agent, sibling("sandpiper-agent")) {
        checks
            .push(agent_settings(file, Command::new(program).arg("--config").arg(file).arg("--check-config").output()));
        checks.extend(AGENT_KEYS.iter().filter_map(|name| agent_key(&state.join(name))));
    }
    if let (Some(file), Some(program)) = (&installation.api, sibling("sandpiper-api")) {
        let ran = Command::new(program).args(["check", "--json", "--config"]).arg(file).output();
        checks.extend(api(file, ran));
    }
    checks
}

fn agent_settings(file: &Path, ran: std::io::Result<Output>) -> Check {
    const NAME: &str = "agent settings";
    match ran {
        Ok(ran) if ran.status.success() => Check::ok(NAME, format!("{} is valid", file.display())),
        Ok(ran) => Check::fail(
            NAME,
            format!("{}: {}", file.display(), String::from_utf8_lossy(&ran.stderr).trim()),
            "correct what it says, and restart the agent",
        ),
        Err(error) => Check::fail(NAME, format!("sandpiper-agent cannot be run: {error}"), "install it again"),
    }
}

/// Nothing while there is no such file: the agent makes it at its first start.
fn agent_key(path: &Path) -> Option<Check> {
    const NAME: &str = "agent keys";
    match fs::metadata(path) {
        Ok(found) if found.mode() & 0o077 == 0 => {
            Some(Check::ok(NAME, format!("{} is closed to others", path.display())))
        }
        Ok(found) => Some(Check::fail(
            NAME,
            format!("{} can be read by others: mode {:o}", path.display(), found.mode() & 0o777),
            format!("chmod 600 {}; who has read it can open data planes of sandboxes", path.display()),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(Check::warn(NAME, format!("{}: {error}", path.display()), "run: sudo sandpiper doctor")),
    }
}

/// What `sandpiper-api check` found.
fn api(file: &Path, ran: std::io::Result<Output>) -> Vec<Check> {
    #[derive(Deserialize)]
    struct Found {
        name: String,
        verdict: Verdict,
        found: String,
        fix: Option<String>,
    }
    // Those that it has, in words of this program.
    let known = |name: &str| match name {
        "secrets key" => "secrets key",
        "database" => "database",
        _ => "api settings",
    };
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) => {
            return vec![Check::fail(
                "api settings",
                format!("sandpiper-api cannot be run: {error}"),
                "install it again",
            )];
        }
    };
    match serde_json::from_slice::<Vec<Found>>(&ran.stdout) {
        Ok(found) => found
            .into_iter()
            .map(|check| Check { name: known(&check.name), verdict: check.verdict, found: check.found, fix: check.fix })
            .collect(),
        // It could not begin: it may not read the file, or not become its user.
        Err(_) => vec![Check::fail(
            "api settings",
            format!("{}: {}", file.display(), String::from_utf8_lossy(&ran.stderr).trim()),
            "run as root: sandpiper doctor",
        )],
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn ran(status: i32, stdout: &str, stderr: &str) -> std::io::Result<Output> {
        Ok(Output { status: ExitStatus::from_raw(status << 8), stdout: stdout.into(), stderr: stderr.into() })
    }

    #[test]
    fn settings_of_the_package_go_before_those_of_up() {
        let folder = tempfile::tempdir().unwrap();
        let (settings, state) = (folder.path().join("etc"), folder.path().join("state"));
        fs::create_dir(&settings).unwrap();
        fs::create_dir_all(state.join("api")).unwrap();
        assert_eq!(Installation::find(&settings, &state), Installation::default());

        fs::write(state.join("agent.toml"), "kernel = \"/of/up\"").unwrap();
        fs::write(state.join("api/api.toml"), "").unwrap();
        let found = Installation::find(&settings, &state);
        assert_eq!((found.is_package, found.kernel()), (false, Some("/of/up".into())));
        assert_eq!(found.api, Some(state.join("api/api.toml")));

        fs::write(settings.join("agent.toml"), "kernel = \"/of/package\"").unwrap();
        let found = Installation::find(&settings, &state);
        assert_eq!((found.is_package, found.kernel()), (true, Some("/of/package".into())));
        assert_eq!(found.api, None, "the package's is not there");
    }

    #[test]
    fn a_template_that_the_agent_has_is_found_by_its_slug() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(imported(state.path(), "base"), None);
        let version = state.path().join("templates/ver1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("template.json"), r#"{"id": "ver1", "slug": "base"}"#).unwrap();
        assert_eq!(imported(state.path(), "base"), Some(version.join("template.json")));
        assert_eq!(imported(state.path(), "builder"), None);
    }

    #[test]
    fn what_the_programs_say_of_their_settings_is_passed_on() {
        let file = Path::new("/etc/sandpiper/agent.toml");
        assert_eq!(agent_settings(file, ran(0, "", "")).verdict, Verdict::Ok);
        let wrong = agent_settings(file, ran(1, "", "sandpiper-agent: `x` is unknown\n"));
        assert_eq!(wrong.verdict, Verdict::Fail);
        assert!(wrong.found.ends_with("agent.toml: sandpiper-agent: `x` is unknown"), "{}", wrong.found);

        let said = r#"[{"name":"database","verdict":"fail","found":"it is newer","fix":"upgrade"}]"#;
        let checks = api(file, ran(1, said, "error: 1 checks failed"));
        assert_eq!((checks.len(), checks[0].name, checks[0].verdict), (1, "database", Verdict::Fail));
        assert_eq!(checks[0].fix.as_deref(), Some("upgrade"));
        let unable = api(file, ran(1, "", "error: Permission denied"));
        assert!(unable[0].verdict == Verdict::Fail && unable[0].found.contains("Permission denied"));
    }

    #[test]
    fn a_key_of_the_agent_that_others_can_read_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.key");
        assert_eq!(agent_key(&path).map(|check| check.verdict), None);
        fs::write(&path, "key").unwrap();
        for (mode, verdict) in
            [(0o600, Verdict::Ok), (0o400, Verdict::Ok), (0o640, Verdict::Fail), (0o604, Verdict::Fail)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(agent_key(&path).map(|check| check.verdict), Some(verdict), "{mode:o}");
        }
    }
}
