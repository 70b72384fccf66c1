//! `sandpiper usage`

use std::process::ExitCode;

use sandpiper::client::{Client, UsageAmounts};

use crate::output::Output;

/// Digits behind the point that a person sees; `--json` has all of them.
const DIGITS: usize = 3;

/// Show what the team used, by hours or days, and what it costs
#[derive(clap::Args)]
#[command(after_help = "\
Without bounds, the last 30 days. A sandbox that runs is counted so far.

Examples:
  sandpiper usage
  sandpiper usage --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z
  sandpiper usage --granularity hour --from 2026-01-31T00:00:00Z --sandbox sbx…
  sandpiper --json usage | jq -r .totals.cost")]
pub(crate) struct Arguments {
    /// Not before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Hours or days of UTC; at most 1000 of them
    #[arg(long, default_value = "day", value_parser = ["hour", "day"])]
    granularity: String,
    /// Only what this sandbox used, which may be gone
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let Arguments { from, to, granularity, sandbox } = &arguments;
    let given = [("from", from.as_deref()), ("to", to.as_deref()), ("sandbox_id", sandbox.as_deref())];
    let mut filters: Vec<_> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    filters.push(("granularity", granularity));
    let usage = client.usage(&filters).await?;
    if output.is_json() {
        output.value(&usage.raw);
    }
    let cost = usage.currency.as_ref().map(|currency| format!("COST, {currency}"));
    let mut header =
        vec!["FROM", "VCPU SECONDS", "MEMORY, GIB SECONDS", "STORAGE, GIB HOURS", "EGRESS, BYTES", "INGRESS, BYTES"];
    header.extend(cost.as_deref());
    let used = usage.buckets.iter().map(|bucket| (bucket.from.to_string(), &bucket.amounts));
    // Days on which nothing was used say nothing.
    let rows = used.filter(|(_, amounts)| !is_nothing(amounts)).chain([("total".to_owned(), &usage.totals)]);
    output.table(&header, rows.map(|(from, amounts)| row(from, amounts)));
    Ok(ExitCode::SUCCESS)
}

fn is_nothing(amounts: &UsageAmounts) -> bool {
    let UsageAmounts { vcpu_seconds, memory_gib_seconds, storage_gib_hours, egress_bytes, ingress_bytes, .. } = amounts;
    [vcpu_seconds, memory_gib_seconds, storage_gib_hours].iter().all(|amount| *amount == "0")
        && (*egress_bytes, *ingress_bytes) == (0, 0)
}

fn row(from: String, amounts: &UsageAmounts) -> Vec<String> {
    let UsageAmounts { vcpu_seconds, memory_gib_seconds, storage_gib_hours, egress_bytes, ingress_bytes, cost } =
        amounts;
    let mut row = vec![from];
    row.extend([vcpu_seconds, memory_gib_seconds, storage_gib_hours].map(|amount| shortened(amount)));
    row.extend([egress_bytes, ingress_bytes].map(u64::to_string));
    row.extend(cost.clone());
    row
}

/// The text of a number without the digits that nobody reads, which are cut off and not rounded.
fn shortened(amount: &str) -> String {
    match amount.split_once('.') {
        Some((whole, fraction)) => format!("{whole}.{}", fraction.get(..DIGITS).unwrap_or(fraction)),
        None => amount.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_three_digits() {
        assert_eq!(["0", "12.5", "1.234", "0.9999999"].map(shortened), ["0", "12.5", "1.234", "0.999"]);
    }
}
