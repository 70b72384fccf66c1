//! What went through the networks of sandboxes, from the readings in the agent's journal to the sums.

use super::*;

/// What went through in each bucket.
fn traffic(used: &Value) -> Vec<(u64, u64)> {
    let of = |bucket: &Value| (bucket["egress_bytes"].as_u64().unwrap(), bucket["ingress_bytes"].as_u64().unwrap());
    used["buckets"].as_array().unwrap().iter().map(of).collect()
}

#[tokio::test]
async fn traffic_counts_in_the_hour_in_which_it_was_read() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    let mut running = host.agent.begin(SANDBOX, Some(&team), (1, 512), START + 30 * 60 * SECOND);
    let minutes = [(40, bytes(1000, 500)), (59, bytes(3000, 600)), (60, bytes(3500, 600)), (90, bytes(4000, 700))];
    for (minute, total) in minutes {
        host.agent.read(&mut running, START + minute * 60 * SECOND, total);
    }
    host.collect().await;
    // While no process fetched any, and as it ended.
    host.agent.read(&mut running, START + 3 * HOUR + 1, bytes(9000, 900));
    running.traffic = Some(Traffic { at_ms: START + 4 * HOUR, total: bytes(10_000, 1000), ..running.traffic.unwrap() });
    host.agent.end(&running, START + 4 * HOUR, EndReason::Paused);
    host.collect().await;

    let used = host.used(START..START + 5 * HOUR, "hour").await;
    assert_eq!(traffic(&used), [(3500, 600), (500, 100), (0, 0), (6000, 300), (0, 0)]);
    assert_eq!((&used["totals"]["egress_bytes"], &used["totals"]["ingress_bytes"]), (&json!(10_000), &json!(1000)));
    let days = host.used(START..START + DAY, "day").await;
    assert_eq!(traffic(&days), [(10_000, 1000)]);

    // An hour counts where it begins, or where the machine did.
    let halves = [START..START + 30 * 60 * SECOND, START + 30 * 60 * SECOND..START + HOUR + 1];
    let of = async |range: &Range<i64>| traffic(&host.used(range.clone(), "day").await);
    assert_eq!((of(&halves[0]).await, of(&halves[1]).await), (vec![(0, 0)], vec![(4000, 700)]));

    let of = async |key: &str, sandbox: &str| {
        let path = format!("{}&sandbox_id={sandbox}", path(&(START..START + DAY), "day"));
        host.call("GET", &path, key, None).await.expect(200)["totals"]["egress_bytes"].as_u64()
    };
    assert_eq!(of(&host.read, SANDBOX).await, Some(10_000));
    assert_eq!(of(&host.read, OTHER).await, Some(0));
    assert_eq!(of(&host.foreign, SANDBOX).await, Some(0), "it is another team's");
}

#[tokio::test]
async fn a_reading_that_is_told_twice_or_late_counts_once() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    let mut running = host.agent.begin(SANDBOX, Some(&team), (1, 512), START);
    host.agent.read(&mut running, START + SECOND, bytes(100, 10));
    host.agent.read(&mut running, START + HOUR + SECOND, bytes(150, 20));
    host.agent.records().intervals.is_deaf = true;
    // A process lists all, and commits it again after others have told more.
    let late = host.app.agent.intervals().await.unwrap();
    for _ in 0..2 {
        Collector::new(host.app.clone()).round().await.unwrap_err();
    }
    host.agent.read(&mut running, START + HOUR + 2 * SECOND, bytes(190, 30));
    running.traffic = Some(Traffic { total: bytes(200, 40), ..running.traffic.unwrap() });
    host.agent.end(&running, START + HOUR + 3 * SECOND, EndReason::Deleted);
    host.agent.records().intervals.is_deaf = false;
    host.agent.records().intervals.page = Some(2);
    host.collect().await;
    host.app.store.intervals.take_over(&late).await.unwrap();

    let used = host.used(START..START + 2 * HOUR, "hour").await;

    assert_eq!(traffic(&used), [(100, 10), (100, 30)]);
}

#[tokio::test]
async fn egress_costs_by_the_gib_and_ingress_nothing_unless_it_has_a_price() {
    let host = Host::with(with_prices).await;
    let team = host.team("acme").await;
    let mut running = host.agent.begin(SANDBOX, Some(&team), (1, 1024), START);
    for (hour, total) in [(0, bytes(1 << 20, 1 << 40)), (1, bytes((1 << 20) + (1 << 30), 1 << 41))] {
        host.agent.read(&mut running, START + hour * HOUR + SECOND, total);
    }
    host.agent.end(&running, START + HOUR + 2 * SECOND, EndReason::Lost);
    host.collect().await;

    let used = host.used(START..START + 2 * HOUR, "hour").await;

    // 3600 and 2 seconds of 0.0000185, and 0.000087890625 and 0.09 for what left.
    assert_eq!(column(&used, "cost"), ["0.066688", "0.090037"]);
    assert_eq!(used["totals"]["cost"], "0.156725");
}

#[tokio::test]
async fn exports_that_follow_on_each_other_have_all_traffic_once() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    let mut total = 0;
    for n in 0..10 {
        let began = START + n * 25 * 60 * SECOND;
        let mut running = host.agent.begin(SANDBOX, Some(&team), (1, 512), began);
        for minute in [3, 11, 24] {
            let at_ms = began + minute * 60 * SECOND;
            host.agent.read(&mut running, at_ms, bytes(n.unsigned_abs() * 1000 + minute.unsigned_abs(), 7));
        }
        total += n.unsigned_abs() * 1000 + 24;
        host.agent.end(&running, began + 24 * 60 * SECOND, EndReason::Expired);
    }
    host.collect().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("api.toml");
    write_config(&config, &host.config.agent_socket, &host.test_database);
    let exported = |range: Range<i64>| {
        let (from, to) = (time(range.start).to_string(), time(range.end).to_string());
        let arguments = ["usage", "export", "--config", config.to_str().unwrap(), "--from", &from, "--to", &to];
        let lines = stdout(&run(&arguments));
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["egress_bytes"].as_u64().unwrap()).sum::<u64>()
    };

    let all = START..START + 5 * HOUR;
    assert_eq!(exported(all.clone()), total);
    // At hours and in the middle of them, and of intervals.
    for split in [HOUR, 40 * 60 * SECOND, 52 * 60 * SECOND, 2 * HOUR + 1, 28 * 60 * SECOND] {
        let parts = exported(all.start..START + split) + exported(START + split..all.end);
        assert_eq!(parts, total, "split at {}", time(START + split));
    }
}
