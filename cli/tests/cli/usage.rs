//! `sandpiper usage`, against an API that has one answer.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{command, listen, ok, printed};

/// Two days, on the first of which nothing was used.
fn used(cost: Option<&str>) -> Value {
    let amounts = |vcpu: &str, memory: &str, cost: Option<&str>| {
        let bytes = if vcpu == "0" { 0 } else { 5000 };
        let mut amounts = json!({"vcpu_seconds": vcpu, "memory_gib_seconds": memory, "storage_gib_hours": "0",
                                 "egress_bytes": bytes, "ingress_bytes": bytes / 5});
        if let Some(cost) = cost {
            amounts["cost"] = json!(cost);
        }
        amounts
    };
    let bucket = |day: u32, mut amounts: Value| {
        amounts["from"] = json!(format!("2026-01-{day:02}T00:00:00Z"));
        amounts["to"] = json!(format!("2026-01-{:02}T00:00:00Z", day + 1));
        amounts
    };
    let mut used = json!({
        "from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z", "granularity": "day", "counted_until": null,
        "buckets": [bucket(1, amounts("0", "0", cost.map(|_| "0"))), bucket(2, amounts("1.5", "0.0003662109375", cost))],
        "totals": amounts("1.5", "0.0003662109375", cost),
    });
    if cost.is_some() {
        used["currency"] = json!("EUR");
    }
    used
}

fn run(used: Value, arguments: &[&str], expected: &'static str) -> String {
    let api = listen(move |asked, stream| {
        assert_eq!(asked.line, expected);
        let _ = stream.write_all(&ok(&used));
    });
    printed(command(api, arguments).output().unwrap())
}

#[test]
fn what_was_used_is_a_table_that_ends_with_the_total() {
    let asked = "GET /v1/usage?from=2026-01-01T00%3A00%3A00Z&sandbox_id=sbx1&granularity=hour";
    let arguments = ["usage", "--from", "2026-01-01T00:00:00Z", "--granularity", "hour", "--sandbox", "sbx1"];

    let table = run(used(Some("0.000021")), &arguments, asked);

    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].ends_with(&["COST,", "EUR"]), "{table}");
    assert_eq!(lines[1], ["2026-01-02T00:00:00Z", "1.5", "0.000", "0", "5000", "1000", "0.000021"]);
    assert_eq!(lines[2], ["total", "1.5", "0.000", "0", "5000", "1000", "0.000021"]);
}

#[test]
fn without_prices_there_is_no_column_for_the_cost_and_json_has_every_digit() {
    let asked = "GET /v1/usage?granularity=day";
    assert!(!run(used(None), &["usage"], asked).contains("COST"));

    let printed: Value = serde_json::from_str(&run(used(None), &["--json", "usage"], asked)).unwrap();

    assert_eq!(printed, used(None));
}

#[test]
fn only_hours_and_days_are_asked_for() {
    let output = command("127.0.0.1:1".parse().unwrap(), &["usage", "--granularity", "minute"]).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("hour"), "{output:?}");
}
