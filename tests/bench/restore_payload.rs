//! Restores of a guest of a few instructions, on this machine's own /dev/kvm whatever its rung: what the monitor and the
//! kernel take, without a guest's kernel. The example `restore` of the monitor does them.

use std::fs::OpenOptions;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::report::{Report, milliseconds};

/// A line of the example.
#[derive(Deserialize)]
struct Times {
    metric: String,
    us: Vec<u64>,
}

pub(crate) fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        eprintln!("SKIPPED: restore-payload: there is no /dev/kvm here");
        return Ok(());
    }
    let program = std::env::current_exe()?.with_file_name("examples").join("restore");
    let output = Command::new(&program).args(["--runs", &runs.to_string()]).output();
    let output =
        output.with_context(|| format!("Cannot run {}: use scripts/bench, which builds it", program.display()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8(output.stdout)?.lines() {
        let Times { metric, us } = serde_json::from_str(line)?;
        let times: Vec<f64> = us.into_iter().map(milliseconds).collect();
        report.add("restore-payload", &metric, "ms", &times);
    }
    Ok(())
}
