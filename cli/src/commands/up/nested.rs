//! `sandpiper up --nested`: the same host inside the nested host, its ports reachable from this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::{Arguments, NewKeys, StopSignals, announce, reachable};
use crate::output::Output;

pub(super) async fn run(arguments: &Arguments, output: Output) -> anyhow::Result<ExitCode> {
    let script = host_script()?;
    let (api, data_plane) = (arguments.listen.port(), arguments.data_plane_listen.port());
    let mut command = Command::new(&script);
    for port in [api, data_plane] {
        command.arg("--forward").arg(port.to_string());
    }
    command.arg("--").arg(std::env::current_exe()?).args(inner_arguments(arguments));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    let progress = output.progress("starting a host inside the nested host");
    let mut child = command.spawn().with_context(|| format!("Cannot run {}", script.display()))?;
    let mut stop = StopSignals::new()?;
    let mut lines = BufReader::new(child.stdout.take().context("The nested host has no output")?).lines();
    // What the inner `up` prints when it is ready.
    let keys: NewKeys = loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => if let Ok(keys) = serde_json::from_str(&line) { break keys },
                None => bail!("The host inside the nested host did not start; its messages above say why"),
            },
            () = stop.recv() => return end(child, &mut stop).await,
        }
    };
    drop(progress);
    let url = format!("http://{}", reachable(arguments.listen));
    keys.store(&url, None)?;
    announce(arguments, &url, &keys, output);
    tokio::select! {
        ended = child.wait() => bail!("The host inside the nested host ended ({})", ended?),
        () = stop.recv() => end(child, &mut stop).await,
    }
}

/// Has the inner `up` end, which pauses its sandboxes first. It hears of every further signal, and answers for itself.
async fn end(mut child: tokio::process::Child, stop: &mut StopSignals) -> anyhow::Result<ExitCode> {
    loop {
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may have ended just now: the wait below finds out.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
        tokio::select! {
            ended = child.wait() => {
                ended?;
                return Ok(ExitCode::SUCCESS);
            }
            () = stop.recv() => {}
        }
    }
}

/// The inner `up` listens on every address of the nested host, which only this machine's loopback reaches.
fn inner_arguments(arguments: &Arguments) -> Vec<OsString> {
    let mut inner: Vec<OsString> = ["--json", "up"].map(OsString::from).into();
    let mut pair = |name: &str, value: OsString| inner.extend([OsString::from(name), value]);
    pair("--listen", format!("0.0.0.0:{}", arguments.listen.port()).into());
    pair("--data-plane-listen", format!("0.0.0.0:{}", arguments.data_plane_listen.port()).into());
    pair("--data-plane-host", arguments.data_plane_host.clone().into());
    pair("--state-dir", arguments.state_dir.clone().into());
    pair("--runtime-dir", arguments.runtime_dir.clone().into());
    let files = [
        ("--kernel", &arguments.kernel),
        ("--template", &arguments.template),
        ("--volume-helper", &arguments.volume_helper),
        ("--builder", &arguments.builder),
        ("--agent-settings", &arguments.agent_settings),
        ("--api-settings", &arguments.api_settings),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            pair(name, file.clone().into());
        }
    }
    let switches = [
        ("--tls", arguments.tls),
        ("--console", arguments.console),
        ("--stop-sandboxes-on-exit", arguments.stop_sandboxes_on_exit),
        // Everything of the command ends with it, machines too.
        ("--pause-sandboxes-on-exit", !arguments.stop_sandboxes_on_exit),
    ];
    inner.extend(switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| OsString::from(name)));
    inner
}

/// `scripts/host` of the checkout that this program was built in.
fn host_script() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let named = std::env::var_os("SANDPIPER_CHECKOUT").map(PathBuf::from);
    named
        .into_iter()
        .chain(std::env::current_dir())
        .chain(exe.ancestors().skip(1).map(PathBuf::from))
        .map(|folder| folder.join("scripts/host"))
        .find(|path| path.is_file())
        .context(
            "The nested host is part of a checkout of Sandpiper: run this there, or name it with SANDPIPER_CHECKOUT",
        )
}
