//! The configurations of agent and API that `up` writes from its own arguments.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sandpiper_durable::{self as durable, Access};
use toml::{Table, Value};

use super::{Arguments, default_kernel, program, reachable};

/// Linux user that the API runs as: it faces the network, and needs no right of root.
const API_USER: &str = "sandpiper";

pub(super) struct Files {
    pub(super) agent: PathBuf,
    pub(super) api: PathBuf,
    pub(super) agent_socket: PathBuf,
    /// A copy that the API's user can run: it may not look into the folders on the way to this program's own.
    pub(super) api_program: PathBuf,
    pub(super) api_user: User,
    /// Of egress profiles, where the operator's settings name no file.
    pub(super) profiles: Option<PathBuf>,
}

#[derive(Clone, Copy)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

pub(super) fn write(arguments: &Arguments) -> anyhow::Result<Files> {
    let kernel = arguments
        .kernel
        .clone()
        .or_else(default_kernel)
        .context("There is no guest kernel: build it with kernel-config/build, or name one with --kernel")?;
    let api_user = api_user()?;
    let (state, runtime) = (&arguments.state_dir, &arguments.runtime_dir);
    let api_dir = state.join("api");
    for folder in [state, runtime, &api_dir] {
        fs::create_dir_all(folder).with_context(|| format!("Cannot create {}", folder.display()))?;
    }
    // The API passes through the state folder to its own; everything else in there is the agent's, and closed.
    fs::set_permissions(state, fs::Permissions::from_mode(0o711))?;
    fs::set_permissions(&api_dir, fs::Permissions::from_mode(0o700))?;
    nix::unistd::chown(&api_dir, Some(api_user.uid.into()), Some(api_user.gid.into()))?;

    let kernel = install(&kernel, state.join("vmlinux"), Access::READABLE)?;
    let api_program = install(&program("sandpiper-api")?, state.join("sandpiper-api"), Access::EXECUTABLE)?;
    let agent_socket = runtime.join("agent.sock");
    let mut agent = Table::new();
    agent.insert("state_dir".into(), text(state));
    agent.insert("runtime_dir".into(), text(runtime));
    agent.insert("vmm".into(), text(&program("sandpiper-vmm")?));
    agent.insert("kernel".into(), text(&kernel));
    agent.insert("console".into(), arguments.console.into());
    agent.insert("stop_sandboxes_on_exit".into(), arguments.stop_sandboxes_on_exit.into());
    let mut api_socket = Table::new();
    api_socket.insert("gid".into(), i64::from(api_user.gid).into());
    agent.insert("api_socket".into(), api_socket.into());
    agent.insert("ingress".into(), ingress(arguments).into());

    let agent_settings = settings(arguments.agent_settings.as_deref())?;
    let profiles = if names_profiles(&agent_settings) { None } else { Some(default_profiles(state)?) };
    if let Some(profiles) = &profiles {
        let mut network = Table::new();
        network.insert("profiles".into(), text(profiles));
        agent.insert("network".into(), network.into());
    }

    let mut api = Table::new();
    api.insert("listen".into(), arguments.listen.to_string().into());
    api.insert("state_dir".into(), text(&api_dir));
    api.insert("agent_socket".into(), text(&agent_socket));

    merge(&mut agent, agent_settings);
    merge(&mut api, settings(arguments.api_settings.as_deref())?);
    if api.get("tls").is_some_and(|tls| tls.as_str() != Some("off")) {
        bail!("`up` speaks plain HTTP with its API: leave `tls` out, or run sandpiper-api by itself");
    }
    let (agent_file, api_file) = (state.join("agent.toml"), api_dir.join("api.toml"));
    let files = Files { agent: agent_file, api: api_file, agent_socket, api_program, api_user, profiles };
    store(&files.agent, agent, None)?;
    store(&files.api, api, Some(api_user))?;
    Ok(files)
}

fn ingress(arguments: &Arguments) -> Table {
    let mut ingress = Table::new();
    ingress.insert("listen".into(), arguments.data_plane_listen.to_string().into());
    ingress.insert("data_plane_host".into(), arguments.data_plane_host.clone().into());
    ingress.insert("tls".into(), if arguments.tls { "local_ca" } else { "off" }.into());
    ingress.insert("api".into(), reachable(arguments.listen).to_string().into());
    ingress
}

fn names_profiles(settings: &Table) -> bool {
    settings.get("network").is_some_and(|network| network.get("profiles").is_some())
}

/// The agent takes an absolute path only.
fn default_profiles(state: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(state.join("egress-profiles.json")).context("Cannot read the current folder")
}

/// Copies what a build made into the state folder, so that no start depends on where it was built, and gives the copy's path.
/// A copy of the same length and time of change is taken for the same. It is in use while this runs: a file that is replaced
/// is replaced whole.
fn install(built: &Path, installed: PathBuf, access: Access) -> anyhow::Result<PathBuf> {
    let source = fs::metadata(built).with_context(|| format!("Cannot read {}", built.display()))?;
    let is_same = fs::metadata(&installed)
        .is_ok_and(|copy| copy.len() == source.len() && copy.modified().ok() == source.modified().ok());
    if !is_same {
        let copy = |file: &mut File| {
            io::copy(&mut File::open(built)?, file)?;
            file.set_modified(source.modified()?)
        };
        durable::write_atomic_with(&installed, access, copy)
            .with_context(|| format!("Cannot copy {} to {}", built.display(), installed.display()))?;
    }
    Ok(installed)
}

/// The operator's own settings.
fn settings(path: Option<&Path>) -> anyhow::Result<Table> {
    let Some(path) = path else { return Ok(Table::new()) };
    let text = fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not valid TOML", path.display()))
}

/// Lays `over` over `base`, table by table.
fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

fn store(path: &Path, table: Table, owner: Option<User>) -> anyhow::Result<()> {
    let text =
        format!("# Written by `sandpiper up` at every start; give your own settings with its --*-settings.\n{table}");
    let access = owner.map_or(Access::PRIVATE, |owner| Access::PRIVATE.owned_by(owner.uid, owner.gid));
    durable::write_atomic_with(path, access, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("Cannot write {}", path.display()))
}

fn text(path: &Path) -> Value {
    Value::String(path.to_string_lossy().into_owned())
}

/// The API's user, made on the first start.
fn api_user() -> anyhow::Result<User> {
    if let Some(user) = nix::unistd::User::from_name(API_USER)? {
        return Ok(User { uid: user.uid.as_raw(), gid: user.gid.as_raw() });
    }
    let made = Command::new("useradd")
        .args(["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"])
        .args(["--shell", "/usr/sbin/nologin", API_USER])
        .output()
        .context("Cannot run useradd, to make the API's user; install the package passwd")?;
    if !made.status.success() {
        bail!("Cannot make the user {API_USER}: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    let user = nix::unistd::User::from_name(API_USER)?.context("useradd made no user")?;
    Ok(User { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn the_ingress_reaches_the_api_wherever_that_listens() {
        let api = |line: &[&str]| {
            let line = Line::parse_from(std::iter::once(&"x").chain(line));
            ingress(&line.arguments)["api"].as_str().map(str::to_owned)
        };
        assert_eq!(api(&[]).as_deref(), Some("127.0.0.1:7070"));
        assert_eq!(api(&["--listen", "0.0.0.0:8080"]).as_deref(), Some("127.0.0.1:8080"));
    }

    #[test]
    fn what_was_built_anew_is_installed_again_and_open_to_all() {
        let folder = tempfile::tempdir().unwrap();
        let (built, installed) = (folder.path().join("built"), folder.path().join("installed"));
        for contents in ["one", "another"] {
            fs::write(&built, contents).unwrap();

            install(&built, installed.clone(), Access::EXECUTABLE).unwrap();

            assert_eq!(fs::read_to_string(&installed).unwrap(), contents);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
        }
    }

    #[test]
    fn own_settings_win_key_by_key() {
        let mut base: Table = toml::from_str("console = false\n[ingress]\nlisten = \"a\"\ntls = \"off\"").unwrap();
        merge(&mut base, toml::from_str("[ingress]\ntls = \"local_ca\"").unwrap());
        assert_eq!(base["ingress"]["listen"].as_str(), Some("a"));
        assert_eq!(base["ingress"]["tls"].as_str(), Some("local_ca"));
        assert_eq!(base["console"].as_bool(), Some(false));
    }

    #[test]
    fn only_settings_that_name_profiles_keep_the_default_ones_away() {
        let names = |text: &str| names_profiles(&toml::from_str(text).unwrap());
        assert!(names("network.profiles = \"/etc/sandpiper/profiles.json\""));
        for text in ["", "profiles = \"x\"", "network = 1", "[network]\npool = 2"] {
            assert!(!names(text), "{text}");
        }
    }
}
