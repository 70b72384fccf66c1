//! The program in the guest: one job, named by its only argument.

use anyhow::Context;
use sandpiper_bench_guest::Job;

fn main() -> anyhow::Result<()> {
    let job = std::env::args().nth(1).context("usage: sandpiper-bench-guest JOB, a job in JSON")?;
    let job: Job = serde_json::from_str(&job).context("the argument is no job")?;
    println!("{}", job.run()?);
    Ok(())
}
