//! Stopped sandboxes of a team, while the metadata of one after the other is replaced. The process has no agent, which it
//! needs for neither; nor does it compare the rows with an agent's sandboxes every second, as it does on a host.

use anyhow::Context;
use sandpiper_protocol::agent::NetworkPolicy;
use sandpiper_protocol::id;
use serde::de::IgnoredAny;
use serde_json::json;
use sqlx::Connection;
use support::Samples;

use super::{List, PAGE, ROUND, ROWS, WRITES};
use crate::api::{Api, Database};
use crate::report::Report;
use crate::schedule::{Request, Target};

const TEAM: &str = "bench";
/// Of sandboxes, by their metadata; each has as many.
const GROUPS: usize = 100;
/// Filtered pages a second.
const FILTERED: u32 = 500;

pub(super) async fn measure(name: &str, database: &Database, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(database, None).await?;
    let key = api.team_key(TEAM)?;
    let sandboxes = put(&api, TEAM, ROWS).await?;
    let list = List {
        api: &api,
        key: key.clone(),
        name: format!("{name}_stopped_sandboxes"),
        path: format!("/v1/sandboxes?limit={PAGE}"),
        entries: "sandboxes",
        next: "next_token",
        token: "next_token",
    };
    let target = Target { address: api.address, key };
    let change = move |number: usize| Request {
        method: "PATCH",
        // Not neighbours, so that the writes are all over the table.
        path: format!("/v1/sandboxes/{}", sandboxes[number * 7919 % ROWS]),
        body: change_of(number * 7919 % ROWS, number),
    };
    list.measure(rounds, async || target.at_rate::<IgnoredAny>(WRITES, ROUND, change.clone()).await, report).await?;
    filtered(name, &target, rounds, change, report).await
}

/// First pages, of the usual length, of those of one group among all, at [`FILTERED`] requests a second; each is timed from when
/// it was due.
async fn filtered(
    name: &str,
    target: &Target,
    rounds: usize,
    change: impl Fn(usize) -> Request + Clone + Send + 'static,
    report: &mut Report,
) -> anyhow::Result<()> {
    let ask = |number: usize| Request {
        method: "GET",
        path: format!("/v1/sandboxes?query%5Bmetadata%5D%5Bgroup%5D={}", number % GROUPS),
        body: String::new(),
    };
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (read, written) = tokio::join!(
            target.at_rate::<IgnoredAny>(FILTERED, ROUND, ask),
            target.at_rate::<IgnoredAny>(WRITES, ROUND, change.clone()),
        );
        written?;
        times.extend(read?.iter().map(|read| (read.received - read.due).as_secs_f64() * 1000.0));
    }
    let p99 = Samples::new(&times).percentile(99).context("too few responses for a 99th percentile")?;
    let name = format!("{name}_stopped_sandboxes_filtered");
    report.add("api", &name, "ms", &times);
    report.add("api", &format!("{name}_p99"), "ms", &[p99]);
    Ok(())
}

/// What replaces the metadata of a sandbox: its group stays.
fn change_of(sandbox: usize, number: usize) -> String {
    let group = (sandbox % GROUPS).to_string();
    json!({"metadata": {"owner": "bench", "change": number.to_string(), "group": group}}).to_string()
}

/// Puts so many sandboxes of a team into the API's database, as they are there when they have been paused; their ids.
pub(crate) async fn put(api: &Api, team: &str, count: usize) -> anyhow::Result<Vec<String>> {
    let mut connection = api.connect().await?;
    let mut tx = connection.begin().await?;
    let (template, version) = (id::generate("tpl"), id::generate("ver"));
    sqlx::query(
        "INSERT INTO templates (id, slug, visibility, created_at_ms, updated_at_ms) VALUES ($1, 'base', 'public', 0, 0)",
    )
    .bind(&template)
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "INSERT INTO template_versions (id, template_id, number, digest, cpu, memory_mb, created_at_ms, runnable) \
         VALUES ($1, $2, 1, 'digest', 1, 256, 0, 1)",
    )
    .bind(&version)
    .bind(&template)
    .execute(&mut *tx)
    .await?;
    let policy = serde_json::to_string(&NetworkPolicy::default())?;
    let ids: Vec<String> = (0..count).map(|_| id::generate("sbx")).collect();
    for (number, id) in ids.iter().enumerate() {
        sqlx::query(
            "INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
                 timeout_seconds, deadline_ms, on_timeout, auto_resume, exposed_ports, allow_public_traffic, \
                 data_plane_url, created_at_ms, started_at_ms, stopped_at_ms, retained_bytes, network_applied) \
             SELECT $1, id, 'stopped', 'base', $2, 1, 256, 10, 300, 300000, 'pause', 1, '[]', 1, \
                 'http://127.0.0.1:7071/' || $1, 0, 0, 300000, 30000000, 1 FROM teams WHERE slug = $3",
        )
        .bind(id)
        .bind(&version)
        .bind(team)
        .execute(&mut *tx)
        .await?;
        sqlx::query("INSERT INTO sandbox_policies (sandbox_id, policy) VALUES ($1, $2)")
            .bind(id)
            .bind(&policy)
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "INSERT INTO sandbox_metadata (sandbox_id, team_id, key, value) \
             SELECT $1, id, column1, column2 FROM teams, \
                 (VALUES ('owner', 'bench'), ('change', ''), ('group', $2)) pairs WHERE slug = $3",
        )
        .bind(id)
        .bind((number % GROUPS).to_string())
        .bind(team)
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    connection.close().await?;
    Ok(ids)
}
