//! A whole host with real guests, from the API down to processes inside a microVM.
//!
//! Run with `scripts/test`, which starts this where real guests run. One process and one host serve all tests: those that
//! share the host two at a time, those that kill or starve it alone ([`runner`]).
#![deny(dead_code)]

#[macro_use]
mod runner;

mod bare;
mod checkpoint;
mod cli;
mod crash;
mod damage;
mod dashboard;
mod documentation;
mod files;
mod filesystem;
mod fork;
mod isolation;
mod jail;
mod lifecycle;
mod logs;
mod lost;
mod network;
mod parking;
mod pause;
mod pressure;
mod preview;
mod process;
mod recovery;
mod restart;
mod templates;
mod templates_builds;
mod templates_hostile;
mod templates_trees;
mod tokens;
mod volumes;
mod volumes_files;
mod volumes_hostile;
mod volumes_mounts;
mod wake;
mod warm;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::runner::{Module, Selection};

/// In this order: `warm` has the snapshot made that most of the others start from; what kills the agent, fills the disk or
/// takes the memory comes late. Behind it are the builds, each of which takes minutes where processors are emulated, so that it is they
/// for which a run with a deadline has no time; and `restart`, as it makes the agent throw the snapshots away.
const MODULES: [Module; 34] = [
    warm::TESTS,
    bare::TESTS,
    process::TESTS,
    files::TESTS,
    filesystem::TESTS,
    isolation::TESTS,
    lifecycle::TESTS,
    lost::TESTS,
    preview::TESTS,
    cli::TESTS,
    logs::TESTS,
    dashboard::TESTS,
    documentation::TESTS,
    jail::TESTS,
    wake::TESTS,
    pause::TESTS,
    checkpoint::TESTS,
    fork::TESTS,
    network::TESTS,
    parking::TESTS,
    damage::TESTS,
    templates::TESTS,
    volumes_mounts::TESTS,
    volumes_files::TESTS,
    volumes_hostile::TESTS,
    tokens::TESTS,
    volumes::TESTS,
    crash::TESTS,
    recovery::TESTS,
    pressure::TESTS,
    templates_trees::TESTS,
    templates_hostile::TESTS,
    templates_builds::TESTS,
    restart::TESTS,
];

/// End-to-end tests
#[derive(Parser)]
struct Arguments {
    /// Parts of the names of the tests to run; all tests where there is none
    filters: Vec<String>,

    /// The filters are whole names
    #[arg(long)]
    exact: bool,

    /// Leaves out tests with this in their name
    #[arg(long)]
    skip: Vec<String>,

    /// Leaves out tests that have not begun after so many minutes
    #[arg(long)]
    minutes: Option<u64>,

    /// Runs so many tests that fail once more, where processors are emulated; they are named at the end
    #[arg(long, default_value_t = 0)]
    second_runs: usize,

    /// Prints the names of the tests instead, in the order in which they run
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let Arguments { filters, exact, skip, minutes, second_runs, list } = Arguments::parse();
    let selection = match Selection::new(&MODULES, &filters, exact, &skip) {
        Ok(selection) => selection,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if list {
        selection.names().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    selection.run(minutes.map(|minutes| Duration::from_secs(60 * minutes)), second_runs)
}
