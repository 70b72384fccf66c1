//! `ports`, `limits` and `metrics`.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{api, command, listen, ok, printed};

#[test]
fn ports_are_listed_and_exposed() {
    let api = api(listen(|_, _| {}));

    let table = printed(command(api, &["ports", "sbx1"]).output().unwrap());
    let exposed = printed(command(api, &["--json", "ports", "sbx1", "--expose", "8000", "--public"]).output().unwrap());

    assert!(["8000", "open", "public", "http://p8000.test"].iter().all(|word| table.contains(word)), "{table}");
    assert_eq!(serde_json::from_str::<Value>(&exposed).unwrap()["url"], "http://p8000.test");
}

#[test]
fn limits_show_what_is_used_of_what() {
    let api = api(listen(|_, _| {}));

    let table = printed(command(api, &["limits"]).output().unwrap());
    let json = printed(command(api, &["--json", "limits"]).output().unwrap());

    let sandboxes: Vec<_> =
        table.lines().find(|line| line.contains("sandboxes ")).unwrap().split_whitespace().collect();
    assert_eq!(sandboxes, ["sandboxes", "3", "20"], "{table}");
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["plan"], "basic");
}

#[test]
fn metrics_over_time_are_the_hosts() {
    let api = listen(move |asked, stream| {
        let start = asked.line.strip_prefix("GET /v1/sandboxes/sbx1/metrics?start=").expect(&asked.line);
        let ago = jiff::Timestamp::now().duration_since(start.parse().unwrap());
        assert_eq!(ago.as_mins(), 90);
        let point = json!({
            "time": "2027-01-15T08:00:00Z", "cpu_used_pct": 12.5, "memory_bytes": 256 << 20, "disk_bytes": 1 << 30,
            "received_bytes_per_second": 2048, "sent_bytes_per_second": 0,
        });
        let history = json!({"step": 5, "cpu": 1, "memory_mb": 512, "disk_gib": 10, "points": [point]});
        let _ = stream.write_all(&ok(&history));
    });

    let table = printed(command(api, &["metrics", "sbx1", "--since", "1h 30m"]).output().unwrap());
    let json = printed(command(api, &["--json", "metrics", "sbx1", "--since", "90m"]).output().unwrap());

    let expected = ["2027-01-15T08:00:00Z", "12.5 %", "256.00 MiB", "1.00 GiB", "2.00 KiB/s"];
    assert!(expected.iter().all(|word| table.contains(word)), "{table}");
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["disk_gib"], 10);
    let refused = command(api, &["metrics", "sbx1", "--since", "soon"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn metrics_are_read_from_the_data_plane() {
    let metrics = json!({
        "ts": 1_700_000_000, "cpu_count": 2, "cpu_used_pct": 12.5, "mem_used": 256 << 20, "mem_total": 1 << 30,
        "mem_cache": 64 << 20, "disk_used": 1 << 30, "disk_total": 8_u64 << 30,
    });
    let shown = metrics.clone();
    let api = api(listen(move |asked, stream| {
        assert_eq!(asked.line, "GET /metrics");
        let _ = stream.write_all(&ok(&shown));
    }));

    let table = printed(command(api, &["metrics", "sbx1"]).output().unwrap());
    let json = printed(command(api, &["--json", "metrics", "sbx1"]).output().unwrap());

    assert!(["12.5 %", "2 vCPU", "256.00 MiB", "8.00 GiB"].iter().all(|word| table.contains(word)), "{table}");
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), metrics);
}
