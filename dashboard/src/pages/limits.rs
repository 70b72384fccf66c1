//! What a team may have, and how much of it it has.

use askama::Template;
use axum::response::Response;
use serde::Deserialize;

use crate::response::{Refusal, page};
use crate::view;
use crate::visit::Visit;

#[derive(Template)]
#[template(path = "limits.html")]
struct Page {
    visit: Visit,
    limits: Limits,
}

#[derive(Deserialize)]
struct Limits {
    max_timeout: u64,
    stopped_days: u64,
    prices: Prices,
    quota: Quota,
}

#[derive(Deserialize)]
struct Prices {
    currency: String,
    vcpu_second: String,
    memory_gib_second: String,
    storage_gib_hour: String,
    egress_gib: String,
    ingress_gib: String,
}

#[derive(Deserialize)]
struct Quota {
    limits: Most,
    usage: Usage,
}

/// What both have.
#[derive(Deserialize)]
struct Amounts {
    sandboxes: u64,
    cpu: u64,
    memory_mb: u64,
    volumes: u64,
    volume_gib: u64,
    templates: u64,
    build_minutes: u64,
    webhooks: u64,
    stopped: u64,
    checkpoints: u64,
}

#[derive(Deserialize)]
struct Most {
    #[serde(flatten)]
    amounts: Amounts,
    stored_gib: u64,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(flatten)]
    amounts: Amounts,
    retained_bytes: u64,
}

/// One line of the table: what, how much of it is in use, how much may be.
struct Line {
    what: &'static str,
    used: u64,
    /// `None`: without limit.
    limit: Option<u64>,
}

impl Quota {
    fn lines(&self) -> [Line; 11] {
        let pair = |of: fn(&Amounts) -> u64| (of(&self.usage.amounts), of(&self.limits.amounts));
        let line = |what, of| {
            let (used, limit) = pair(of);
            Line { what, used, limit: Some(limit) }
        };
        let optional =
            |what, (used, limit): (u64, u64)| Line { what, used, limit: Some(limit).filter(|limit| *limit > 0) };
        let stored = (self.usage.retained_bytes.div_ceil(1 << 30), self.limits.stored_gib);
        [
            line("Sandboxes", |amounts| amounts.sandboxes),
            line("Virtual CPUs", |amounts| amounts.cpu),
            line("Memory in MiB", |amounts| amounts.memory_mb),
            line("Volumes", |amounts| amounts.volumes),
            line("Volumes in GiB", |amounts| amounts.volume_gib),
            line("Templates", |amounts| amounts.templates),
            line("Minutes of builds in 30 days", |amounts| amounts.build_minutes),
            line("Webhooks", |amounts| amounts.webhooks),
            optional("Stored in GiB", stored),
            optional("Stopped sandboxes", pair(|amounts| amounts.stopped)),
            optional("Checkpoints", pair(|amounts| amounts.checkpoints)),
        ]
    }
}

/// `GET /dashboard/{team}/limits`
pub(crate) async fn show(visit: Visit) -> Result<Response, Refusal> {
    let limits = visit.get("/v1/sandbox_limits").await?;
    Ok(page(&Page { visit, limits }))
}
