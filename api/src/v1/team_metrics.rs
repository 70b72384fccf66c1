//! `GET /v1/metrics`: what a team has and uses, for its own Prometheus. Sums of the team: no label has as many values as there are
//! sandboxes.

use std::sync::atomic::AtomicU64;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;

use crate::auth::ReadAccess;
use crate::plan::{GIB, Quota};
use crate::state::App;
use crate::store::events::EventType;
use crate::store::sandbox_row::State as SandboxState;
use crate::store::usage::Usage;

/// How the text is written.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EventLabels {
    r#type: &'static str,
}

/// Scrape the team's metrics
///
/// In the text format of Prometheus: sandboxes by state, CPUs, memory and storage that they and the team's other things hold, what the
/// plan allows, and how many events of each type there ever were, such as `sandbox.created` and `sandbox.failed`. All are sums of the
/// team. They are the same whichever process of the API is asked, and the totals outlive it.
#[utoipa::path(
    get,
    path = "/v1/metrics",
    operation_id = "scrape_metrics",
    tag = "limits",
    params(("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default")),
    responses((status = 200, description = "The metrics", body = String, content_type = "application/openmetrics-text"))
)]
pub async fn scrape(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Response, ApiError> {
    caller.check_team(query.only_team()?.as_deref())?;
    let team = &caller.team;
    let counts = app.store.sandboxes.counts_of(&team.id).await?;
    let usage = app.store.sandboxes.usage(&team.id, app.clock.now()).await?;
    let totals = app.store.events.totals(&team.id).await?;
    let mut registry = Registry::with_prefix("sandpiper_team");
    register_sandboxes(&mut registry, &counts);
    register_usage(&mut registry, &usage, &app.offer.of(team.plan).quota);
    register_events(&mut registry, totals);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

fn register_sandboxes(registry: &mut Registry, counts: &[(SandboxState, u64)]) {
    let sandboxes = Family::<StateLabels, Gauge<u64, AtomicU64>>::default();
    for state in SandboxState::VISIBLE {
        let count = counts.iter().find(|(counted, _)| *counted == state).map_or(0, |(_, count)| *count);
        sandboxes.get_or_create(&StateLabels { state: state.as_str() }).set(count);
    }
    registry.register("sandboxes", "Sandboxes by state", sandboxes);
}

fn register_usage(registry: &mut Registry, usage: &Usage, quota: &Quota) {
    let numbers: [(&str, &str, u64); 14] = [
        ("live_sandboxes", "Sandboxes that count against the quota", usage.sandboxes.into()),
        ("live_sandboxes_quota", "Most of them", quota.sandboxes.into()),
        ("cpus", "CPUs that live sandboxes have", usage.cpu.into()),
        ("cpus_quota", "Most of them", quota.cpu.into()),
        ("volumes", "Volumes", usage.volumes.into()),
        ("volumes_quota", "Most of them", quota.volumes.into()),
        ("templates", "Templates of the team", usage.templates.into()),
        ("templates_quota", "Most of them", quota.templates.into()),
        ("build_minutes", "Minutes that builds took in the last 30 days", usage.build_minutes),
        ("build_minutes_quota", "Most of them", quota.build_minutes),
        ("checkpoints", "Checkpoints", usage.checkpoints.into()),
        ("checkpoints_quota", "Most of them; 0: without limit", quota.checkpoints.into()),
        ("stopped_sandboxes", "Stopped sandboxes", usage.stopped.into()),
        ("stopped_sandboxes_quota", "Most of them; 0: without limit", quota.stopped.into()),
    ];
    let bytes: [(&str, &str, u64); 6] = [
        ("memory", "Memory that live sandboxes have", usage.memory_mb.saturating_mul(MIB)),
        ("memory_quota", "Most of it", quota.memory_mb.saturating_mul(MIB)),
        ("volume_size", "What volumes may grow to together", usage.volume_gib.saturating_mul(GIB)),
        ("volume_size_quota", "Most of it", quota.volume_gib.saturating_mul(GIB)),
        (
            "storage",
            "Disk of the host that sandboxes, checkpoints, volumes, versions and uploads hold",
            usage.retained_bytes,
        ),
        ("storage_quota", "Most of it; 0: without limit", quota.stored_bytes().unwrap_or_default()),
    ];
    for (name, help, value) in numbers {
        registry.register(name, help, gauge(value));
    }
    for (name, help, value) in bytes {
        registry.register_with_unit(name, help, Unit::Bytes, gauge(value));
    }
}

fn register_events(registry: &mut Registry, totals: Vec<(EventType, u64)>) {
    let events = Family::<EventLabels, Counter>::default();
    for (event_type, total) in totals {
        events.get_or_create(&EventLabels { r#type: event_type.as_str() }).inc_by(total);
    }
    registry.register("events", "Events of the team by type, from its first on", events);
}

fn gauge(value: u64) -> Gauge<u64, AtomicU64> {
    let gauge = Gauge::default();
    gauge.set(value);
    gauge
}
