//! What the API does without an agent: lists of 10,000 entries while 50 requests a second change what is listed, in pages of
//! 100, the newest and the oldest; and creates.
//!
//! Payments are reported as ever. Sandboxes are rows of stopped ones, since 10,000 real ones fit on no host; what
//! changes is their metadata.

mod creates;
mod payments;
pub(crate) mod sandboxes;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use support::Samples;

use crate::api::{self, Api, Database};
use crate::load::Load;
use crate::report::Report;
use crate::schedule::Answer;

const ROWS: usize = 10_000;
/// Entries of a page; the most that a page of sandboxes may have.
const PAGE: usize = 100;
/// Changes a second.
const WRITES: u32 = 50;
/// That ask for lists.
const CONNECTIONS: usize = 4;
const ROUND: Duration = Duration::from_secs(5);
const MOST_ROUNDS: usize = 3;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    for (name, database) in Database::all("api") {
        let rounds = runs.clamp(1, MOST_ROUNDS);
        payments::measure(name, &database, rounds, report).await?;
        sandboxes::measure(name, &database, rounds, report).await?;
        creates::measure(name, &database, report).await?;
    }
    Ok(())
}

/// A list of [`ROWS`] entries.
struct List<'a> {
    api: &'a Api,
    key: String,
    /// In the names of its results.
    name: String,
    /// Of the first page.
    path: String,
    /// The field of a page that has its entries.
    entries: &'static str,
    /// The field that has the token of the page after it.
    next: &'static str,
    /// The parameter that takes it.
    token: &'static str,
}

impl List<'_> {
    /// Asks for the first page and for the last, each in so many rounds, while `write` makes changes for a round.
    async fn measure<T>(
        &self,
        rounds: usize,
        write: impl AsyncFn() -> anyhow::Result<Vec<Answer<T>>>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        for (page, path) in [("first", self.path.clone()), ("last", self.last_page().await?)] {
            let load = Load {
                address: self.api.address,
                host: self.api.address.to_string(),
                path,
                key: Some(self.key.clone()),
                tls: None,
                connections: CONNECTIONS,
            };
            let (mut times, mut rates, mut writes) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                let (round, written) = tokio::join!(load.clone().run(ROUND), write());
                let round = round?;
                // Since they were due at the rate, however long they had to wait.
                writes.extend(written?.iter().map(|write| (write.received - write.due).as_secs_f64() * 1000.0));
                times.extend(round.times);
                rates.push(round.rate);
            }
            let p99 = Samples::new(&times).percentile(99).context("too few responses for a 99th percentile")?;
            let name = format!("{}_{page}_page", self.name);
            report.add("api", &name, "ms", &times);
            report.add("api", &format!("{name}_p99"), "ms", &[p99]);
            report.add("api", &format!("{name}_rate"), "req/s", &rates);
            report.add("api", &format!("{name}_write"), "ms", &writes);
        }
        Ok(())
    }

    /// Goes through all pages; the path of the last of them.
    async fn last_page(&self) -> anyhow::Result<String> {
        let mut path = self.path.clone();
        for number in 1..=ROWS / PAGE {
            let page = self.api.call("GET", &path, &self.key, &Value::Null).await?;
            let length = page[self.entries].as_array().map(Vec::len);
            ensure!(length == Some(PAGE), "page {number} has {length:?} entries");
            if number < ROWS / PAGE {
                path = format!("{}&{}={}", self.path, self.token, api::text(&page, self.next)?);
            }
        }
        Ok(path)
    }
}
