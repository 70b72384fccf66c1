//! Stopped sandboxes of a team, while the metadata of one after the other is replaced. The process has no agent, which it
//! needs for neither; nor does it compare the rows with an agent's sandboxes every second, as it does on a host.

use sandpiper_protocol::agent::NetworkPolicy;
use sandpiper_protocol::id;
use serde::de::IgnoredAny;
use serde_json::json;
use sqlx::Connection;

use super::{List, PAGE, ROUND, ROWS, WRITES};
use crate::api::{Api, Database};
use crate::report::Report;
use crate::schedule::{Request, Target};

const TEAM: &str = "bench";

pub(super) async fn measure(name: &str, database: &Database, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(database, None).await?;
    let key = api.team_key(TEAM)?;
    let sandboxes = put(&api).await?;
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
        body: json!({"metadata": {"owner": "bench", "change": number.to_string()}}).to_string(),
    };
    list.measure(rounds, async || target.at_rate::<IgnoredAny>(WRITES, ROUND, change.clone()).await, report).await
}

/// Puts the team's sandboxes into the API's database, as they are there when they have been paused; their ids.
async fn put(api: &Api) -> anyhow::Result<Vec<String>> {
    let mut connection = api.connect().await?;
    let mut tx = connection.begin().await?;
    let template = id::generate("ver");
    sqlx::query("INSERT INTO template_versions VALUES ($1, 'base', 1, 'digest', 1, 256, 0, 1)")
        .bind(&template)
        .execute(&mut *tx)
        .await?;
    let policy = serde_json::to_string(&NetworkPolicy::default())?;
    let ids: Vec<String> = (0..ROWS).map(|_| id::generate("sbx")).collect();
    for id in &ids {
        sqlx::query(
            "INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
                 timeout_seconds, deadline_ms, on_timeout, auto_resume, exposed_ports, allow_public_traffic, \
                 data_plane_url, created_at_ms, started_at_ms, stopped_at_ms, retained_bytes, network_applied) \
             SELECT $1, id, 'stopped', 'base', $2, 1, 256, 10, 300, 300000, 'pause', 1, '[]', 1, \
                 'http://127.0.0.1:7071/' || $1, 0, 0, 300000, 30000000, 1 FROM teams WHERE slug = $3",
        )
        .bind(id)
        .bind(&template)
        .bind(TEAM)
        .execute(&mut *tx)
        .await?;
        sqlx::query("INSERT INTO sandbox_policies (sandbox_id, policy) VALUES ($1, $2)")
            .bind(id)
            .bind(&policy)
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "INSERT INTO sandbox_metadata (sandbox_id, key, value) VALUES ($1, 'owner', 'bench'), ($1, 'change', '')",
        )
        .bind(id)
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    connection.close().await?;
    Ok(ids)
}
