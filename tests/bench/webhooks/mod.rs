//! Webhooks, from the report of a payment to the first byte at the receiver: ten merchants, the real API on each database,
//! and a receiver over TLS in this process.
//!
//! | result | |
//! |---|---|
//! | `DB_accepted_RATE` | from the report's answer to the first byte, at so many reports a second (open loop) |
//! | `DB_reported_RATE` | the same from the moment at which the payment was to be reported |
//! | `DB_sustained` | webhooks a second that arrive while reports come as fast as they are answered (closed loop) |
//! | `DB_others_alone_SLOTS` | `accepted` of nine merchants, with so many attempts at a time: the 95th percentile of each round |
//! | `DB_others_beside_SLOTS` | the same while the tenth hangs and [`HELD_UP`] webhooks wait for it |
//! | `DB_beside_over_alone_SLOTS` | the one over the other, round by round |
//! | `DB_reported_beside_import_p99` | from the moment at which a payment was to be reported to the answer, while the largest file is imported |
//! | `DB_import` | how long that import takes meanwhile |
//!
//! The database is SQLite on a disk, where every commit waits for it, or PostgreSQL at the URL in `SANDPIPER_TEST_POSTGRES`,
//! which `scripts/bench` starts and which does not: its results are of the work, not of the disk.

mod events;
mod import;

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use support::{Receiver, Samples};

use self::events::{arrived, times};
use crate::api::{Api, Database, Webhooks};
use crate::report::Report;
use crate::reporter::Reporter;

const MERCHANTS: usize = 10;
/// The one that hangs.
const HOG: usize = MERCHANTS - 1;
const ALL: Range<usize> = 0..MERCHANTS;
const OTHERS: Range<usize> = 0..HOG;
/// Attempts at a time: the fewest that anybody would choose, and the default.
const SLOTS: [u32; 2] = [16, 1024];
/// Reports a second.
const RATES: [u32; 2] = [100, 1000];
/// Of the nine.
const FAIRNESS_RATE: u32 = 100;
const ROUND: Duration = Duration::from_secs(5);
/// Reports of a closed loop.
const SUSTAINED: usize = 5000;
/// Webhooks that wait for the one that hangs.
const HELD_UP: usize = 10_000;
/// A round is long and says much.
const MOST_ROUNDS: usize = 3;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    for (name, database) in Database::all("webhooks") {
        measure(name, &database, runs.clamp(1, MOST_ROUNDS), report).await?;
    }
    Ok(())
}

async fn measure(name: &str, database: &Database, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let [few, usual] = SLOTS;
    let (_api, reporter, receiver) = open(database, few).await?;
    fairness((name, few), &reporter, &receiver, rounds, report).await?;

    let (api, reporter, receiver) = open(database, usual).await?;
    // Attempts at a time begin with few and grow with prompt answers.
    arrived(&reporter.at_once(ALL, SUSTAINED).await?, &receiver).await?;

    for rate in RATES {
        let times = times(&reporter.at_rate(ALL, rate, ROUND).await?, &receiver).await?;
        for (from, samples) in [("accepted", &times.since_accepted), ("reported", &times.since_due)] {
            let metric = format!("{name}_{from}_{rate}");
            report.add("webhooks", &metric, "ms", samples);
            report.add("webhooks", &format!("{metric}_p99"), "ms", &[percentile(samples, 99)?]);
        }
    }

    let mut rates = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        let events = reporter.at_once(ALL, SUSTAINED).await?;
        let end = arrived(&events, &receiver).await?.context("nothing was reported")?;
        rates.push(events.len() as f64 / (end - begin).as_secs_f64());
    }
    report.add("webhooks", &format!("{name}_sustained"), "1/s", &rates);
    fairness((name, usual), &reporter, &receiver, rounds, report).await?;
    import::measure(name, &api, &reporter, report).await
}

/// An API with so many attempts at a time, the merchants, whose payments are reported, and who receives their webhooks. A
/// receiver is one API's: two of them give their deliveries the same ids.
async fn open(database: &Database, slots: u32) -> anyhow::Result<(Api, Reporter, Receiver)> {
    let receiver = Receiver::start().await?;
    let api = Api::start(database, Some(Webhooks { authority: &receiver.certificate, slots })).await?;
    let mut merchants = Vec::new();
    for number in ALL {
        let merchant = api.merchant(&format!("merchant-{number}"), &[]).await?;
        let secret = api.key(&merchant, "secret").await?;
        let config = json!({"realm": "live", "url": receiver.url(number)});
        api.call("PUT", "/merchant/api/v1/webhookConfig", &secret, &config).await?;
        merchants.push(merchant);
    }
    let reporter = Reporter::new(&api, merchants);
    Ok((api, reporter, receiver))
}

async fn fairness(
    (name, slots): (&str, u32),
    reporter: &Reporter,
    receiver: &Receiver,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let others = async || {
        let times = times(&reporter.at_rate(OTHERS, FAIRNESS_RATE, ROUND).await?, receiver).await?;
        percentile(&times.since_accepted, 95)
    };
    let (mut alone, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        alone.push(others().await?);
        receiver.hang(Some(HOG));
        let held_up = reporter.at_once(HOG..MERCHANTS, HELD_UP).await?;
        beside.push(others().await?);
        receiver.hang(None);
        arrived(&held_up, receiver).await?;
    }
    ratios.extend(beside.iter().zip(&alone).map(|(beside, alone)| beside / alone * 100.0));
    report.add("webhooks", &format!("{name}_others_alone_{slots}"), "ms", &alone);
    report.add("webhooks", &format!("{name}_others_beside_{slots}"), "ms", &beside);
    report.add("webhooks", &format!("{name}_beside_over_alone_{slots}"), "%", &ratios);
    Ok(())
}

fn percentile(samples: &[f64], percent: usize) -> anyhow::Result<f64> {
    Samples::new(samples).percentile(percent).context("too few webhooks for this percentile")
}
