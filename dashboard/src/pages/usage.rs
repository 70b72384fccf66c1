//! What a team used, day by day, and what it costs.

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use crate::response::{Refusal, page};
use crate::view::{self, Chart};
use crate::visit::{Visit, with_query};

#[derive(Template)]
#[template(path = "usage.html")]
struct Page {
    visit: Visit,
    granularity: String,
    usage: Usage,
    charts: Vec<Chart>,
}

/// How it is looked at.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct By {
    granularity: String,
}

impl Default for By {
    fn default() -> Self {
        Self { granularity: "day".to_owned() }
    }
}

#[derive(Deserialize)]
struct Usage {
    currency: Option<String>,
    totals: Amounts,
    buckets: Vec<Bucket>,
}

#[derive(Deserialize)]
struct Bucket {
    from: Timestamp,
    #[serde(flatten)]
    amounts: Amounts,
}

/// Decimal text, and whole bytes.
#[derive(Deserialize)]
struct Amounts {
    vcpu_seconds: String,
    memory_gib_seconds: String,
    storage_gib_hours: String,
    egress_bytes: u64,
    ingress_bytes: u64,
    cost: Option<String>,
}

/// `GET /dashboard/{team}/usage`
pub(crate) async fn show(visit: Visit, Query(By { granularity }): Query<By>) -> Result<Response, Refusal> {
    let usage: Usage = visit.get(&with_query("/v1/usage", &[("granularity", Some(&granularity))])).await?;
    let charts = charts(&usage);
    Ok(page(&Page { visit, granularity, usage, charts }))
}

fn charts(Usage { currency, buckets, .. }: &Usage) -> Vec<Chart> {
    // A picture: what a float loses of the numbers, which are below it, is not seen.
    let values = |of: fn(&Amounts) -> Option<&String>| -> Vec<f64> {
        buckets.iter().filter_map(|bucket| of(&bucket.amounts)?.parse().ok()).collect()
    };
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    let mib = |of: fn(&Amounts) -> u64| -> Vec<f64> {
        buckets.iter().map(|bucket| of(&bucket.amounts) as f64 / f64::from(1 << 20)).collect()
    };
    let plain = |value: f64| format!("{value:.2}");
    let unit = currency.clone().unwrap_or_default();
    let charts = [
        Chart::new("vCPU seconds", &values(|amounts| Some(&amounts.vcpu_seconds)), 0.0, plain),
        Chart::new("Memory, GiB seconds", &values(|amounts| Some(&amounts.memory_gib_seconds)), 0.0, plain),
        Chart::new("Storage, GiB hours", &values(|amounts| Some(&amounts.storage_gib_hours)), 0.0, plain),
        Chart::new("Egress, MiB", &mib(|amounts| amounts.egress_bytes), 0.0, plain),
        Chart::new("Ingress, MiB", &mib(|amounts| amounts.ingress_bytes), 0.0, plain),
        Chart::new("Cost", &values(|amounts| amounts.cost.as_ref()), 0.0, |value| format!("{value:.2} {unit}")),
    ];
    charts.into_iter().flatten().collect()
}
