//! Lists of an operator who has 10,000 payments, while 50 more are reported each second: pages of 100, the first and the
//! one that holds the oldest.
//!
//! Payments, because they need no guest; the lists of sandboxes and of deliveries are read the same way, by key.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use support::Samples;

use crate::api::{Api, Database};
use crate::figure::Report;
use crate::load::Load;
use crate::reporter::Reporter;

const ROWS: usize = 10_000;
/// Entries of a page that is measured.
const PAGE: usize = 100;
/// The most entries that a page may have.
const LARGEST_PAGE: usize = 1000;
/// Reports a second.
const WRITES: u32 = 50;
/// That ask for lists.
const CONNECTIONS: usize = 4;
const ROUND: Duration = Duration::from_secs(5);
const MOST_ROUNDS: usize = 3;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    for (name, database) in Database::all("list") {
        measure(name, &database, runs.clamp(1, MOST_ROUNDS), report).await?;
    }
    Ok(())
}

async fn measure(name: &str, database: &Database, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(database, None).await?;
    let merchant = api.merchant("bench", &[]).await?;
    let reporter = Reporter::new(&api, vec![merchant.clone()]);
    reporter.at_once(0..1, ROWS).await?;
    let first = format!("/operator/v1/payments?merchantId={merchant}&pageSize={PAGE}");
    let last = format!("{first}&pageToken={}", token_of_last_page(&api, &merchant).await?);
    for (page, path) in [("first", first), ("last", last)] {
        let load = Load {
            address: api.address,
            host: api.address.to_string(),
            path,
            key: Some(api.operator.clone()),
            tls: None,
            connections: CONNECTIONS,
        };
        let (mut times, mut rates, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (round, events) = tokio::join!(load.clone().run(ROUND), reporter.at_rate(0..1, WRITES, ROUND));
            let round = round?;
            reports.extend(events?.iter().map(|event| (event.accepted - event.due).as_secs_f64() * 1000.0));
            times.extend(round.times);
            rates.push(round.rate);
        }
        let p99 = Samples::new(&times).percentile(99).context("too few responses for a 99th percentile")?;
        report.add("list", &format!("{name}_{page}_page"), "ms", &times);
        report.add("list", &format!("{name}_{page}_page_p99"), "ms", &[p99]);
        report.add("list", &format!("{name}_{page}_page_rate"), "req/s", &rates);
        // Those that were due at the rate, however long they had to wait.
        report.add("list", &format!("{name}_{page}_page_report"), "ms", &reports);
    }
    Ok(())
}

/// Goes through all payments; the token of the page that is the last of so many.
async fn token_of_last_page(api: &Api, merchant: &str) -> anyhow::Result<String> {
    let (mut seen, mut size, mut token) = (0, LARGEST_PAGE, String::new());
    loop {
        let path = format!("/operator/v1/payments?merchantId={merchant}&pageSize={size}&pageToken={token}");
        let page = api.call("GET", &path, &api.operator, &Value::Null).await?;
        seen += page["payments"].as_array().map_or(0, Vec::len);
        token = page["nextPageToken"].as_str().with_context(|| format!("no page after {seen} payments"))?.to_owned();
        if seen == ROWS - PAGE {
            return Ok(token);
        }
        size = LARGEST_PAGE.min(ROWS - PAGE - seen);
        ensure!(size > 0, "a page of another size than was asked for: {seen} payments so far");
    }
}
