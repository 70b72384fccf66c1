//! Reports of payments while the largest file that is taken is imported.

use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

use super::{ALL, ROUND, percentile};
use crate::api::Api;
use crate::report::Report;
use crate::reporter::Reporter;

/// With the market, as many entries as one file may have.
const BANKS: usize = 11_999;
const OPERATORS: usize = 8_000;
/// Reports a second: the import takes about one, and a 99th percentile needs a hundred of them.
const RATE: u32 = 400;

/// Of the reports that were answered before the import was: the 99th percentile, and how long the import took.
pub(super) async fn measure(name: &str, api: &Api, reporter: &Reporter, report: &mut Report) -> anyhow::Result<()> {
    let file = file();
    let begin = Instant::now();
    let import = async {
        api.call("POST", "/operator/v1/import", &api.operator, &file).await?;
        anyhow::Ok(Instant::now())
    };
    let (end, answers) = tokio::try_join!(import, reporter.at_rate(ALL, RATE, ROUND))?;
    let beside = answers.iter().filter(|answer| answer.received < end);
    let times: Vec<f64> = beside.map(|answer| (answer.received - answer.due).as_secs_f64() * 1000.0).collect();
    let p99 = percentile(&times, 99).context("the import was over too soon")?;
    report.add("webhooks", &format!("{name}_reported_beside_import_p99"), "ms", &[p99]);
    report.add("webhooks", &format!("{name}_import"), "s", &[(end - begin).as_secs_f64()]);
    Ok(())
}

fn file() -> Value {
    let bank =
        |number| json!({"countryCode": "KE", "code": format!("{number:05}"), "name": format!("Example Bank {number}")});
    let operator = |number| {
        json!({"countryCode": "KE", "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY", "operator": format!("wallet-{number}"),
               "name": format!("Example Wallet {number}")})
    };
    let methods = ["PAYMENT_METHOD_BANK_ACCOUNT", "PAYMENT_METHOD_MOBILE_MONEY"];
    json!({
        "markets": [{"countryCode": "KE", "currencyCode": "KES", "methodsIn": methods, "methodsOut": methods}],
        "banks": (0..BANKS).map(bank).collect::<Vec<_>>(),
        "operators": (0..OPERATORS).map(operator).collect::<Vec<_>>(),
    })
}
