//! `sandpiper doctor`

use std::path::PathBuf;
use std::process::ExitCode;

use sandpiper_protocol::template::BUILDER_TEMPLATE;
use sandpiper_protocol::volume::HELPER_TEMPLATE;
use serde_json::json;

use crate::commands::up;
use crate::doctor::{self, Installation, Paths, Rung, SETTINGS_DIR, Verdict};
use crate::output::Output;

/// Check whether this machine can run sandboxes, and say how to mend what is missing
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 when sandboxes can run here (perhaps in the nested host), 1 when something is missing."
)]
pub(crate) struct Arguments {
    /// Print the number of the rung only: 1 KVM runs Linux guests, 2 KVM runs payloads only, 3 no KVM
    #[arg(long)]
    rung: bool,

    /// Folder where the host would keep its data
    #[arg(long, default_value = up::STATE_DIR)]
    state_dir: PathBuf,

    /// Folder of the package's settings
    #[arg(long, default_value = SETTINGS_DIR)]
    settings_dir: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, output: Output) -> anyhow::Result<ExitCode> {
    let rung = Rung::find();
    if arguments.rung {
        output.line(&rung.number().to_string());
        if output.is_json() {
            output.value(&json!({"rung": rung.number()}));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (installation, state) =
        (Installation::find(&arguments.settings_dir, &arguments.state_dir), &arguments.state_dir);
    // A template that the agent has needs no image any more.
    let imported = |slug| doctor::imported(state, slug);
    let paths = Paths {
        state_dir: state.clone(),
        kernel: installation.kernel().or_else(up::default_kernel),
        template: imported("base").or_else(up::default_template),
        volume_helper: imported(HELPER_TEMPLATE).or_else(up::default_volume_helper),
        builder: imported(BUILDER_TEMPLATE).or_else(up::default_builder),
        installation,
    };
    let checks = doctor::all(&rung, &paths);
    let healthy = checks.iter().all(|check| check.verdict != Verdict::Fail);
    if output.is_json() {
        output.value(&json!({"rung": rung.number(), "healthy": healthy, "checks": checks}));
    }
    for check in checks {
        let mark = match check.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        output.line(&format!("{mark}  {:14} {}", check.name, check.found));
        if let Some(fix) = check.fix {
            output.line(&format!("      {:14} -> {fix}", ""));
        }
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
