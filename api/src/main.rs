//! `sandpiper-api`; see `sandpiper-api --help`.

use std::process::ExitCode;

use clap::Parser;
use sandpiper_api::commands::Arguments;

fn main() -> ExitCode {
    match Arguments::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
