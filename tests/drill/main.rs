//! Drills: a whole host under load of many kinds, while its processes are killed.
//!
//! ```text
//!   tenants ──▶ API, data planes ◀── faults: kill -9 of agent, API, `up`, a monitor, PostgreSQL
//!   merchant ─▶ API ─▶ webhooks
//!        └── ledger: what was acknowledged, what was killed ──▶ audit: what is lost, doubled, left over ──▶ table
//!  observer ──▶ when machines really ran ──▶ comparison with what the API bills ──┘
//! ```

mod caller;
mod comparison;
mod crash;
mod faults;
mod ledger;
mod merchant;
mod observer;
mod postgres;
mod subject;
mod tenant;
mod usage;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, ValueEnum};

use crate::crash::Database;
use crate::faults::Victim;

/// Drills of a whole host with real guests
#[derive(Parser)]
#[command(after_help = "\
Examples:
  scripts/drill crash                  two minutes of it
  scripts/drill crash --minutes 20
  scripts/drill crash --kill agent,monitor
  scripts/drill crash --database sqlite
  scripts/drill crash --seed 7 --json  the same choices again; a line of JSON at the end")]
enum Drill {
    /// Kill random processes of the host at random moments; then audit that nothing is lost, doubled or left over
    Crash {
        /// How long there is load, and processes are killed; the audit comes after that
        #[arg(long, default_value_t = 2.0)]
        minutes: f64,

        /// Where the API's data are; in SQLite there is no PostgreSQL to be killed
        #[arg(long, value_enum, default_value_t = Database::Postgres)]
        database: Database,

        /// Whom to kill, separated by commas; anyone otherwise
        #[arg(long, value_enum, value_delimiter = ',')]
        kill: Vec<Victim>,

        /// Of the random choices; printed, so that a drill can be repeated
        #[arg(long)]
        seed: Option<u64>,

        /// Print one line of JSON instead of the table
        #[arg(long)]
        json: bool,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let Drill::Crash { minutes, database, kill, seed, json } = Drill::parse();
    let has = |victim: &Victim| *victim != Victim::Postgres || database == Database::Postgres;
    ensure!(kill.iter().all(has), "--kill postgres: with --database sqlite there is none");
    let all = Victim::value_variants().iter().copied().filter(has).collect();
    let victims = if kill.is_empty() { all } else { kill };
    let seed = seed.unwrap_or_else(rand::random);
    eprintln!("drill crash: {minutes} minutes, seed {seed}");
    let ledger = crash::run(Duration::from_secs_f64(minutes * 60.0), database, &victims, seed).await?;
    if json {
        println!("{}", ledger.json());
    } else {
        println!("{}", ledger.table());
    }
    Ok(if ledger.findings().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
