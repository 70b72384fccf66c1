//! What the ingress costs: the same requests through it and through nginx, to the same server on this machine.
//!
//! ```text
//!   load ─┬─ TCP ─▶ ingress ── Unix socket, as a monitor's ─┬─▶ origin
//!         └─ TCP ─▶ nginx ──── Unix socket ─────────────────┘
//! ```
//!
//! Each box has one thread. Rounds alternate, so that both have the same of whatever else the machine does, and the ratio
//! is that of two rounds beside each other. What an answer takes of a processor is the kernel's account of the box: it
//! says what the box costs also where the load or the origin holds everything up.

mod guest;
mod nginx;
mod origin;
mod stage;

use std::time::Duration;

pub(crate) use self::guest::run as run_in_guest;
use self::stage::{Stage, Subject};
use crate::load::{Load, Round, Rounds};
use crate::report::Report;

const CONNECTIONS: usize = 32;
const ROUND: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(300);
/// A round is long and says much: more of them would only take longer.
const MOST_ROUNDS: usize = 7;
/// Bytes of an answer's body.
const SIZES: [(&str, usize); 2] = [("100b", 100), ("64k", 64 << 10)];

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    for (prefix, tls) in [("", false), ("tls_", true)] {
        let stage = Stage::set(tls).await?;
        for (name, size) in SIZES {
            compare(&stage, &format!("{prefix}{name}"), size, runs.clamp(1, MOST_ROUNDS), report).await?;
        }
    }
    Ok(())
}

async fn compare(stage: &Stage, name: &str, size: usize, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    for subject in [&stage.ingress, &stage.nginx] {
        measure(stage, subject, size, WARM_UP).await?;
    }
    let (mut ingress, mut nginx) = (Timings::default(), Timings::default());
    for round in 0..rounds {
        // Neither is always the first.
        if round.is_multiple_of(2) {
            ingress.add(measure(stage, &stage.ingress, size, ROUND).await?);
            nginx.add(measure(stage, &stage.nginx, size, ROUND).await?);
        } else {
            nginx.add(measure(stage, &stage.nginx, size, ROUND).await?);
            ingress.add(measure(stage, &stage.ingress, size, ROUND).await?);
        }
    }
    ingress.report(&format!("proxy_{name}"), report);
    nginx.report(&format!("nginx_{name}"), report);
    let ratios: Vec<f64> =
        ingress.rounds.rates.iter().zip(&nginx.rounds.rates).map(|(proxy, nginx)| proxy / nginx * 100.0).collect();
    report.add("preview", &format!("proxy_over_nginx_{name}"), "%", &ratios);
    Ok(())
}

/// A round, and the microseconds of a processor that each of its answers took.
async fn measure(stage: &Stage, subject: &Subject, size: usize, time: Duration) -> anyhow::Result<(Round, f64)> {
    let load = Load {
        address: subject.address,
        host: stage::HOST.to_owned(),
        path: format!("/{size}"),
        key: None,
        tls: stage.tls.clone(),
        connections: CONNECTIONS,
    };
    let before = subject.processor_time()?;
    let round = stage.run(load.run(time)).await?;
    let spent = subject.processor_time()?.saturating_sub(before);
    let each = spent.as_secs_f64() * 1e6 / f64::from(u32::try_from(round.times.len())?);
    Ok((round, each))
}

#[derive(Default)]
struct Timings {
    rounds: Rounds,
    processor: Vec<f64>,
}

impl Timings {
    fn add(&mut self, (round, processor): (Round, f64)) {
        self.rounds.add(&round);
        self.processor.push(processor);
    }

    fn report(&self, name: &str, report: &mut Report) {
        self.rounds.report("preview", name, report);
        report.add("preview", &format!("{name}_cpu"), "us/req", &self.processor);
    }
}
