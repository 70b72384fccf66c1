//! Payments of a merchant, for an operator, while others are reported.

use super::{List, PAGE, ROUND, ROWS, WRITES};
use crate::api::{Api, Database};
use crate::report::Report;
use crate::reporter::Reporter;

pub(super) async fn measure(name: &str, database: &Database, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(database, None).await?;
    let merchant = api.merchant("bench", &[]).await?;
    let path = format!("/operator/v1/payments?merchantId={merchant}&pageSize={PAGE}");
    let reporter = Reporter::new(&api, vec![merchant]);
    reporter.at_once(0..1, ROWS).await?;
    let list = List {
        api: &api,
        key: api.operator.clone(),
        name: format!("{name}_payments"),
        path,
        entries: "payments",
        next: "nextPageToken",
        token: "pageToken",
    };
    list.measure(rounds, async || reporter.at_rate(0..1, WRITES, ROUND).await, report).await
}
