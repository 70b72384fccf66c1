//! Resuming a sandbox of whose files the host's page cache has nothing, as after a night.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Dialogue, Host, KEEPER, small};

use crate::report::{Report, elapsed, mebibytes};
use crate::starts;

/// Of a guest of 512 MiB, since it was started or resumed.
const WRITTEN_MIB: u32 = 30;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let request = CreateSandbox { memory_mb: Some(512), ..small() };
    let mut sandbox = host.wait_until_warm(&request).await;
    let keeper = Dialogue::start(&sandbox, KEEPER).await.pid();
    let (mut resumed, mut served, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        Dialogue::attach(&sandbox, keeper).await.ask(&format!("fill {WRITTEN_MIB}")).await;
        sandbox.pause().await?;
        forget(&host.folder_of(&sandbox.id))?;
        let before = bytes_read()?;
        let begin = Instant::now();
        sandbox.resume(None).await?;
        resumed.push(elapsed(begin));
        sandbox.sh("true").await;
        served.push(elapsed(begin));
        let from_disk = bytes_read()? - before;
        ensure!(from_disk > 0, "nothing was read from a disk: the cache was not cold");
        read.push(mebibytes(from_disk));
        starts::check(&sandbox, StartKind::Restored).await?;
    }
    report.add("resume-cold", &format!("cold_resume_{WRITTEN_MIB}_mib"), "ms", &resumed);
    report.add("resume-cold", &format!("cold_resume_{WRITTEN_MIB}_mib_to_command"), "ms", &served);
    report.add("resume-cold", &format!("cold_resume_{WRITTEN_MIB}_mib_read"), "MiB", &read);
    sandbox.delete().await;
    Ok(())
}

/// Has the page cache forget a sandbox's files, those that it shares with its template's snapshot too: they are links.
fn forget(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            // What is not on the disk yet would stay.
            file.sync_all()?;
            posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    Ok(())
}

/// Bytes that the host has read from its disks.
fn bytes_read() -> anyhow::Result<u64> {
    let counters = fs::read_to_string("/proc/vmstat")?;
    let kib = counters.lines().find_map(|line| line.strip_prefix("pgpgin ")).context("no pgpgin in /proc/vmstat")?;
    Ok(kib.parse::<u64>()? << 10)
}
