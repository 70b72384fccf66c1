//! `sandpiper-bench-guest`, which puts load on a guest's disk and network: in a guest, and as the peer outside.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context, ensure};
use sandpiper_bench_guest::{Job, Volume};
use serde::de::DeserializeOwned;
use support::internet::Internet;
use support::{Sandbox, eventually, text};
use tokio::net::TcpStream;

use crate::report::mebibytes;

const PATH: &str = "/root/sandpiper-bench-guest";

/// The program in a guest.
pub(crate) struct Program<'a>(&'a Sandbox);

impl<'a> Program<'a> {
    pub(crate) async fn install(sandbox: &'a Sandbox) -> anyhow::Result<Self> {
        let bytes = std::fs::read(program()?)?;
        sandbox.data_plane.write_file(PATH, bytes, Some("root")).await?;
        let made = sandbox.root_sh(&format!("chmod +x {PATH}")).await;
        ensure!(made.end.exit_code == 0, "{}", text(&made.stderr));
        Ok(Self(sandbox))
    }

    /// Runs one job to its end: what it printed.
    pub(crate) async fn run<T: DeserializeOwned>(&self, job: &Job) -> anyhow::Result<T> {
        let command = sandpiper::client::Command {
            program: PATH.into(),
            arguments: vec![serde_json::to_string(job)?],
            user: Some("root".into()),
            ..Default::default()
        };
        let output = self.0.data_plane.run(&command).await?;
        ensure!(output.end.exit_code == 0, "{job:?}: {}", text(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// The peer, in the tests' internet; ends with this.
pub(crate) struct Peer(Child);

impl Peer {
    pub(crate) async fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let job = serde_json::to_string(&Job::Serve { address })?;
        let mut command = Internet::shared().command(&program()?);
        let peer = Self(command.arg(job).stdin(Stdio::null()).spawn()?);
        eventually("the peer listens", || async { TcpStream::connect(address).await.is_ok() }).await;
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails when the process has ended, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// MiB a second.
pub(crate) fn throughput(volume: &Volume) -> f64 {
    mebibytes(volume.bytes) / volume.time.as_secs_f64()
}

fn program() -> anyhow::Result<PathBuf> {
    let program = std::env::var_os("SANDPIPER_BENCH_GUEST").map(PathBuf::from);
    program.context("SANDPIPER_BENCH_GUEST is not set: use scripts/bench, or set it to a static sandpiper-bench-guest")
}
