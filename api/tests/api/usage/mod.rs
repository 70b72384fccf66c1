//! What teams used, from the agent's journal to the sums.

mod traffic;

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sandpiper_api::billing::decimal;
use sandpiper_api::config::Config;
use sandpiper_api::orchestration::collect::Collector;
use sandpiper_protocol::interval::{Bytes, Counters, EndReason, Interval, Traffic};
use serde_json::{Value, json};

use crate::command::{run, stdout, write_config};
use crate::support::Host;
use crate::support::agent::RETAINED;
use crate::support::shop::operator_key;

const SECOND: i64 = 1000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// 2026-03-01T00:00:00Z.
const START: i64 = 1_772_323_200_000;

const SANDBOX: &str = "sbx0000000000000000000001";
const OTHER: &str = "sbx0000000000000000000002";

fn time(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

/// The path of a question about this time.
fn path(range: &Range<i64>, granularity: &str) -> String {
    format!("/v1/usage?from={}&to={}&granularity={granularity}", time(range.start), time(range.end))
}

/// Decimal text in thousandths, which it has none below.
fn thousandths(text: &Value) -> u128 {
    let text = text.as_str().unwrap();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(fraction.len() <= 3, "{text}");
    format!("{whole}{fraction:0<3}").parse().unwrap()
}

/// GiB seconds of memory as MiB times milliseconds.
fn memory_mb_ms(text: &Value) -> u128 {
    let text = text.as_str().unwrap();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(fraction.len() <= 13, "{text}");
    // Of 10^-13 GiB seconds.
    let scaled: u128 = format!("{whole}{fraction:0<13}").parse().unwrap();
    let exact = scaled * 1024 * 1000;
    assert_eq!(exact % 10_u128.pow(13), 0, "{text}");
    exact / 10_u128.pow(13)
}

fn with_prices(config: &mut Config) {
    let prices = r#"{"currency": "EUR", "vcpu_second": "0.000014", "memory_gib_second": "0.0000045",
                     "storage_gib_hour": "0.00014", "egress_gib": "0.09"}"#;
    config.prices = Some(serde_json::from_str(prices).unwrap());
}

impl Host {
    async fn team(&self, slug: &str) -> String {
        self.app.store.teams.by_slug(slug).await.unwrap().unwrap().id.to_string()
    }

    /// One round by a process that has seen nothing before.
    async fn collect(&self) {
        Collector::new(self.app.clone()).round().await.unwrap();
    }

    /// What team `acme` used.
    async fn used(&self, range: Range<i64>, granularity: &str) -> Value {
        self.get(&path(&range, granularity)).await.expect(200)
    }

    /// Moves the API's clock to this time.
    fn set_clock(&self, ms: i64) {
        self.pass(SignedDuration::from_millis(ms - self.app.clock.now().as_millisecond()));
    }
}

/// Bytes each way.
fn bytes(egress: u64, ingress: u64) -> Bytes {
    Bytes { egress, ingress }
}

fn column<'a>(used: &'a Value, field: &str) -> Vec<&'a str> {
    used["buckets"].as_array().unwrap().iter().map(|bucket| bucket[field].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_run_is_split_at_hours_and_days_and_the_buckets_have_the_whole() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    host.agent.ran(SANDBOX, &team, (2, 512), START + 22 * HOUR + 1..START + 25 * HOUR + 7);
    host.collect().await;

    let hours = host.used(START + 21 * HOUR..START + 26 * HOUR, "hour").await;
    assert_eq!(column(&hours, "vcpu_seconds"), ["0", "7199.998", "7200", "7200", "0.014"]);
    assert_eq!(column(&hours, "memory_gib_seconds"), ["0", "1799.9995", "1800", "1800", "0.0035"]);
    assert_eq!(hours["totals"]["vcpu_seconds"], "21600.012");
    let (first, last) = (&hours["buckets"][0], &hours["buckets"][4]);
    assert_eq!((&first["from"], &last["to"]), (&json!("2026-03-01T21:00:00Z"), &json!("2026-03-02T02:00:00Z")));

    let days = host.used(START..START + 2 * DAY, "day").await;
    assert_eq!(column(&days, "vcpu_seconds"), ["14399.998", "7200.014"]);
    assert_eq!(days["totals"], hours["totals"]);

    let part = host.used(START + 23 * HOUR + 500..START + 23 * HOUR + 501, "day").await;
    assert_eq!(column(&part, "vcpu_seconds"), ["0.002"]);
    assert_eq!((&part["buckets"][0]["from"], &part["from"]), (&part["from"], &json!("2026-03-01T23:00:00.5Z")));
}

#[tokio::test]
async fn what_is_told_twice_counts_once() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    host.agent.ran(SANDBOX, &team, (1, 1024), START..START + 10 * SECOND);
    let running = host.agent.begin(SANDBOX, Some(&team), (1, 1024), START + 20 * SECOND);
    (host.agent.records().intervals.is_deaf, host.agent.records().intervals.page) = (true, Some(100));
    for _ in 0..3 {
        Collector::new(host.app.clone()).round().await.unwrap_err();
    }
    assert_eq!(host.used(START..START + HOUR, "hour").await["totals"]["vcpu_seconds"], "10");

    host.agent.end(&running, START + 25 * SECOND, EndReason::Paused);
    host.agent.records().intervals.is_deaf = false;
    // The first process listed a page before the end was there, and commits it after the second has.
    let mut late = host.app.agent.intervals().await.unwrap();
    late.records.truncate(3);
    host.collect().await;
    host.app.store.intervals.take_over(&late).await.unwrap();
    host.collect().await;

    assert_eq!(host.used(START..START + HOUR, "hour").await["totals"]["vcpu_seconds"], "15");
    assert_eq!(host.agent.records().intervals.acknowledged, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_collect_at_the_same_time_find_the_same() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    for n in 0..200 {
        host.agent.ran(SANDBOX, &team, (1, 128), START + n * SECOND..START + n * SECOND + 7);
    }
    host.agent.records().intervals.page = Some(13);

    let collectors = (0..4).map(|_| {
        let mut collector = Collector::new(host.app.clone());
        tokio::spawn(async move { collector.round().await })
    });
    for collector in collectors.collect::<Vec<_>>() {
        collector.await.unwrap().unwrap();
    }

    assert_eq!(host.used(START..START + HOUR, "hour").await["totals"]["vcpu_seconds"], "1.4");
    assert_eq!(host.agent.records().intervals.acknowledged, 400);
}

#[tokio::test]
async fn what_runs_is_counted_until_it_was_seen_last() {
    let host = Host::new().await;
    let team = host.team("acme").await;
    let running = host.agent.begin(SANDBOX, Some(&team), (1, 1024), START);
    host.collect().await;
    let used = host.used(START..START + HOUR, "hour").await;
    assert_eq!((&used["totals"]["vcpu_seconds"], &used["counted_until"]), (&json!("0"), &json!(null)));

    let mut collector = Collector::new(host.app.clone());
    // One that is older is none, and one that is hardly later is not written down.
    for seen in [7, 30, 25, 40] {
        host.agent.records().intervals.seen_at_ms = Some(START + seen * SECOND);
        collector.round().await.unwrap();
    }
    let used = host.used(START..START + HOUR, "hour").await;
    assert_eq!(
        (&used["totals"]["vcpu_seconds"], &used["counted_until"]),
        (&json!("30"), &json!("2026-03-01T00:00:30Z"))
    );

    // It had ended before, as the next agent found.
    host.agent.end(&running, START + 11 * SECOND, EndReason::Lost);
    collector.round().await.unwrap();
    assert_eq!(host.used(START..START + HOUR, "hour").await["totals"]["vcpu_seconds"], "11");
}

#[tokio::test]
async fn nothing_is_lost_while_either_is_away() {
    let mut host = Host::new().await;
    let team = host.team("acme").await;
    host.agent.ran(SANDBOX, &team, (1, 1024), START..START + 5 * SECOND);
    host.agent.stop();
    Collector::new(host.app.clone()).round().await.unwrap_err();
    assert_eq!(host.used(START..START + HOUR, "hour").await["totals"]["vcpu_seconds"], "0");

    for n in 1..50 {
        host.agent.ran(SANDBOX, &team, (1, 1024), START + n * 10 * SECOND..START + n * 10 * SECOND + 5 * SECOND);
    }
    host.agent.resume();
    host.agent.records().intervals.page = Some(7);
    let host = host.restart().await;
    host.collect().await;

    assert_eq!(host.used(START..START + HOUR, "hour").await["totals"]["vcpu_seconds"], "250");
    let lists = host.agent.records().intervals.lists;
    assert_eq!(lists, 100_u32.div_ceil(7), "page by page");
}

#[tokio::test]
async fn teams_never_see_what_others_used() {
    let host = Host::new().await;
    let (acme, rival) = (host.team("acme").await, host.team("rival").await);
    host.agent.ran(SANDBOX, &acme, (1, 1024), START..START + 5 * SECOND);
    host.agent.ran(OTHER, &rival, (1, 1024), START..START + 700 * SECOND);
    // Of an agent that knew no team, by the row of the sandbox; and of one that nobody has.
    let own = host.sandbox().await;
    for sandbox in [own.as_str(), "sbx0000000000000000000009"] {
        let interval = host.agent.begin(sandbox, None, (1, 1024), START + 10 * SECOND);
        host.agent.end(&interval, START + 11 * SECOND, EndReason::Crashed);
    }
    host.collect().await;
    let range = START..START + HOUR;

    let of = async |key: &str, more: &str| {
        let used = host.call("GET", &format!("{}{more}", path(&range, "hour")), key, None).await.expect(200);
        used["totals"]["vcpu_seconds"].as_str().unwrap().to_owned()
    };
    assert_eq!((of(&host.read, "").await, of(&host.foreign, "").await), ("6".into(), "700".into()));
    let sandbox = |id: &str| format!("&sandbox_id={id}");
    assert_eq!(of(&host.read, &sandbox(SANDBOX)).await, "5");
    assert_eq!(of(&host.read, &sandbox(&own)).await, "1");
    assert_eq!(of(&host.read, &sandbox(OTHER)).await, "0");
    host.get(&format!("{}&team=rival", path(&range, "hour"))).await.refused(404, "not_found");
}

#[tokio::test]
async fn storage_is_measured_once_an_hour_whoever_looks() {
    let host = Host::with(with_prices).await;
    let (paused, running) = (host.sandbox().await, host.sandbox().await);
    host.post(&format!("/v1/sandboxes/{paused}/pause"), json!({})).await.expect(200);
    host.sync().await;
    let checkpoint = host.checkpoint(&running, json!({})).await;
    let size = checkpoint["size"].as_u64().unwrap();
    host.set_clock(START + 30 * 60 * SECOND);
    let mut collector = Collector::new(host.app.clone());
    for minutes in [30, 31, 45, 61, 62, 200] {
        host.set_clock(START + minutes * 60 * SECOND);
        collector.round().await.unwrap();
        host.collect().await;
    }

    let used = host.used(START..START + 4 * HOUR, "hour").await;

    let gib = |bytes: u64| decimal::text(bytes.into(), 1 << 30);
    let hourly = gib(RETAINED + size);
    assert_eq!(column(&used, "storage_gib_hours"), [hourly.as_str(), &hourly, "0", &hourly], "no process ran in one");
    assert_eq!(used["totals"]["storage_gib_hours"], gib(3 * (RETAINED + size)));
    let one = host.get(&format!("{}&sandbox_id={paused}", path(&(START..START + 4 * HOUR), "day"))).await.expect(200);
    assert_eq!(one["totals"]["storage_gib_hours"], gib(3 * RETAINED));
    let foreign = host.call("GET", &path(&(START..START + 4 * HOUR), "day"), &host.foreign, None).await.expect(200);
    assert_eq!(foreign["totals"]["storage_gib_hours"], "0");
}

#[tokio::test]
async fn with_prices_all_of_it_costs_and_the_buckets_have_the_whole_cost() {
    let host = Host::with(with_prices).await;
    let team = host.team("acme").await;
    for n in 0..20 {
        host.agent.ran(SANDBOX, &team, (1, 1024), START + n * HOUR + 17..START + n * HOUR + 17 + n * 33);
    }
    host.agent.ran(SANDBOX, &team, (1, 1024), START..START + 1000 * SECOND);
    host.collect().await;

    let used = host.used(START..START + DAY, "hour").await;

    assert_eq!(used["currency"], "EUR");
    let millionths = |text: &str| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        format!("{whole}{fraction:0<6}").parse::<u64>().unwrap()
    };
    let sum: u64 = column(&used, "cost").into_iter().map(millionths).sum();
    assert_eq!(millionths(used["totals"]["cost"].as_str().unwrap()), sum);
    // 1006.27 seconds.
    assert_eq!((&used["totals"]["vcpu_seconds"], &used["totals"]["cost"]), (&json!("1006.27"), &json!("0.018616")));
    let limits = host.get("/v1/sandbox_limits").await.expect(200);
    let prices = json!({"currency": "EUR", "vcpu_second": "0.000014", "memory_gib_second": "0.0000045",
                        "storage_gib_hour": "0.00014", "egress_gib": "0.09", "ingress_gib": "0"});
    assert_eq!(limits["prices"], prices);
}

#[tokio::test]
async fn without_prices_nothing_costs() {
    let host = Host::new().await;
    let used = host.get("/v1/usage").await.expect(200);
    assert_eq!((used.get("currency"), used["totals"].get("cost")), (None, None));
    assert_eq!(used["granularity"], "day");
    assert!((30..=31).contains(&used["buckets"].as_array().unwrap().len()));
}

#[tokio::test]
async fn questions_that_make_no_sense_are_refused() {
    let host = Host::new().await;
    let refused = async |query: &str, field: &str| host.get(&format!("/v1/usage?{query}")).await.blames(field);
    refused("from=yesterday", "from").await;
    refused("to=1800000000", "to").await;
    refused("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from").await;
    refused("from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from").await;
    refused("from=2026-01-01T00:00:00Z&to=2026-03-01T00:00:00Z&granularity=hour", "from").await;
    refused("from=1900-01-01T00:00:00Z", "from").await;
    refused("granularity=minute", "granularity").await;
    refused("granularity=day&granularity=hour", "granularity").await;
    refused("sandbox_id=app", "sandbox_id").await;
    refused("since=1h", "since").await;
    host.get("/v1/usage?from=2026-01-01T00:00:00Z&to=2026-02-11T16:00:00Z&granularity=hour").await.expect(200);
}

#[tokio::test]
async fn an_operator_exports_lines_that_add_up() {
    let host = Host::new().await;
    let (acme, rival) = (host.team("acme").await, host.team("rival").await);
    host.agent.ran(SANDBOX, &acme, (2, 512), START + HOUR - 5..START + HOUR + 7);
    let mut running = host.agent.begin(OTHER, Some(&rival), (1, 128), START + HOUR);
    for (minutes, egress) in [(50, 700), (70, 1000), (110, 1500)] {
        host.agent.read(&mut running, START + HOUR + minutes * 60 * SECOND, bytes(egress, 2 * egress));
    }
    host.agent.records().intervals.seen_at_ms = Some(START + 2 * HOUR);
    let nobodys = host.agent.begin(SANDBOX, None, (1, 128), START);
    host.agent.end(&nobodys, START + 3, EndReason::Crashed);
    host.collect().await;
    let sandbox = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{sandbox}/pause"), json!({})).await.expect(200);
    host.sync().await;
    host.set_clock(START + HOUR);
    host.collect().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("api.toml");
    write_config(&config, &host.config.agent_socket, &host.test_database);
    let export = |range: Range<i64>, more: &[&str]| {
        let (from, to) = (time(range.start).to_string(), time(range.end).to_string());
        let arguments = ["usage", "export", "--config", config.to_str().unwrap(), "--from", &from, "--to", &to];
        stdout(&run(&[&arguments, more].concat()))
    };
    let ms = |text: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["milliseconds"].as_i64().unwrap()).sum::<i64>()
    };

    let (first, second) = (export(START..START + HOUR, &[]), export(START + HOUR..START + 3 * HOUR, &[]));

    assert_eq!((ms(&first), ms(&second)), (5 + 3, 7 + HOUR));
    assert_eq!(ms(&export(START..START + 3 * HOUR, &[])), 5 + 3 + 7 + HOUR);
    let lines = export(START..START + 3 * HOUR, &["--format", "csv", "--team", "rival"]);
    let expected = format!(
        "team,team_slug,id,sandbox,cpu,memory_mb,from,to,milliseconds,egress_bytes,ingress_bytes,end_reason\n\
         {rival},rival,{},{OTHER},1,128,2026-03-01T01:00:00Z,2026-03-01T02:00:00Z,{HOUR},1500,3000,\n",
        running.id
    );
    assert_eq!(lines, expected);
    let stored = export(START..START + 3 * HOUR, &["--kind", "storage"]);
    let line = json!({"team": acme, "team_slug": "acme", "kind": "sandbox", "object": sandbox,
                      "hour": "2026-03-01T01:00:00Z", "bytes": RETAINED});
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), line);

    // Over HTTP they are the same.
    let operator = operator_key(&host).await;
    for (kind, format, team) in
        [("intervals", "jsonl", None), ("intervals", "csv", Some("rival")), ("storage", "csv", None)]
    {
        let mut more = vec!["--kind", kind, "--format", format];
        more.extend(team.map(|team| ["--team", team]).into_iter().flatten());
        let query = team.map_or(String::new(), |team| format!("&team={team}"));
        let (from, to) = (time(START), time(START + 3 * HOUR));
        let path = format!("/operator/v1/usage?from={from}&to={to}&kind={kind}&format={format}{query}");
        let answer = host.call("GET", &path, &operator, None).await;
        assert_eq!(answer.text, export(START..START + 3 * HOUR, &more), "{path}");
        assert!(answer.text.lines().count() >= 1, "{path}");
    }
}

/// What somebody saw who stood beside the machines.
#[derive(Default)]
struct Observer {
    runs: Vec<SeenRun>,
    moves: Vec<SeenMove>,
}

/// What went through a machine's network, and when that is to count: from when on it may have.
struct SeenMove {
    sandbox: usize,
    counts_at: i64,
    bytes: Bytes,
}

/// A machine of a sandbox, both by their places in the lists.
struct SeenRun {
    team: usize,
    sandbox: usize,
    cpu: u32,
    memory_mb: u32,
    time: Range<i64>,
}

impl SeenRun {
    fn new(sandbox: usize, interval: &Interval, time: Range<i64>) -> Self {
        Self { team: sandbox % 2, sandbox, cpu: interval.cpu, memory_mb: interval.memory_mb, time }
    }
}

impl Observer {
    /// Sees something go through the network of an interval's machine, which is read now.
    fn see_move(&mut self, sandbox: usize, interval: &mut Interval, now: i64, moved: Bytes) {
        let total = interval.traffic.unwrap().total + moved;
        interval.traffic = Some(Traffic { at_ms: now, total, counters: Counters::default() });
        let hour = (now - 1).div_euclid(HOUR) * HOUR;
        self.moves.push(SeenMove { sandbox, counts_at: hour.max(interval.began_at_ms), bytes: moved });
    }

    /// Bytes of a team, or of one of its sandboxes, that count within a span.
    fn traffic(&self, team: usize, sandbox: Option<usize>, span: &Range<i64>) -> (u64, u64) {
        let moves = self.moves.iter().filter(|one| one.sandbox % 2 == team && span.contains(&one.counts_at));
        let moves = moves.filter(|one| sandbox.is_none_or(|sandbox| sandbox == one.sandbox));
        let Bytes { egress, ingress } = moves.fold(Bytes::default(), |sum, one| sum + one.bytes);
        (egress, ingress)
    }

    /// vCPU and MiB milliseconds of a team, or of one of its sandboxes, within a span.
    fn sums(&self, team: usize, sandbox: Option<usize>, span: &Range<i64>) -> (u128, u128) {
        let runs = self.runs.iter().filter(|run| run.team == team && sandbox.is_none_or(|one| one == run.sandbox));
        runs.fold((0, 0), |(cpu_ms, memory_ms), SeenRun { cpu, memory_mb, time, .. }| {
            let ms = u128::from((time.end.min(span.end) - time.start.max(span.start)).max(0).unsigned_abs());
            (cpu_ms + u128::from(*cpu) * ms, memory_ms + u128::from(*memory_mb) * ms)
        })
    }
}

/// Sandboxes start, send, pause and end at random, processes come and go, acknowledgements and responses are lost.
#[tokio::test]
async fn any_life_of_a_host_has_the_sums_that_an_observer_has() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut host = Host::new().await;
    let teams = [host.team("acme").await, host.team("rival").await];
    let ids: Vec<String> = (0..8).map(|n| format!("sbx000000000000000000001{n}")).collect();
    let mut observer = Observer::default();
    let mut live: BTreeMap<usize, (Interval, i64)> = BTreeMap::new();
    let mut now = START;
    for _ in 0..600 {
        let longest = [50, 90 * SECOND, 3 * HOUR][random.random_range(0..3)];
        now += random.random_range(0..longest);
        let sandbox = random.random_range(0..ids.len());
        let team = sandbox % 2;
        match random.random_range(0..14) {
            10..=13 => {
                if let Some((interval, _)) = live.get_mut(&sandbox) {
                    let moved = bytes(random.random_range(0..1 << 40), random.random_range(0..1 << 40));
                    observer.see_move(sandbox, interval, now, moved);
                    let total = interval.traffic.unwrap().total;
                    host.agent.read(interval, now, total);
                }
            }
            0..=4 => match live.remove(&sandbox) {
                Some((mut interval, began)) => {
                    let moved = bytes(random.random_range(0..3) * 1000, random.random_range(0..100));
                    observer.see_move(sandbox, &mut interval, now, moved);
                    let reason = EndReason::ALL[random.random_range(0..EndReason::ALL.len())];
                    host.agent.end(&interval, now, reason);
                    observer.runs.push(SeenRun::new(sandbox, &interval, began..now));
                }
                None => {
                    let shape = (random.random_range(1..=16), random.random_range(1..=64) * 128);
                    live.insert(sandbox, (host.agent.begin(&ids[sandbox], Some(&teams[team]), shape, now), now));
                }
            },
            5 => host.agent.records().intervals.seen_at_ms = (!live.is_empty()).then_some(now),
            6 => {
                let journal = &mut host.agent.records().intervals;
                (journal.is_deaf, journal.page) = (random.random(), Some(random.random_range(1..20)));
            }
            7 => host = host.restart().await,
            // Also in vain.
            _ => drop(Collector::new(host.app.clone()).round().await),
        }
    }
    // What runs still was seen now.
    (host.agent.records().intervals.seen_at_ms, host.agent.records().intervals.is_deaf) = (Some(now), false);
    host.collect().await;
    for (sandbox, (interval, began)) in live {
        observer.runs.push(SeenRun::new(sandbox, &interval, began..now));
    }

    let end = now + 1;
    for (team, key) in [&host.read, &host.foreign].into_iter().enumerate() {
        for granularity in ["hour", "day"] {
            let widest = if granularity == "hour" { 900 * HOUR } else { end - START };
            let start = random.random_range(START..end);
            let range = start..end.min(start + random.random_range(1..=widest));
            let used = host.call("GET", &path(&range, granularity), key, None).await.expect(200);
            let mut whole = (0, 0);
            for bucket in used["buckets"].as_array().unwrap() {
                let bound =
                    |field: &str| bucket[field].as_str().unwrap().parse::<Timestamp>().unwrap().as_millisecond();
                let found = (thousandths(&bucket["vcpu_seconds"]), memory_mb_ms(&bucket["memory_gib_seconds"]));
                let span = bound("from")..bound("to");
                assert_eq!(found, observer.sums(team, None, &span), "seed {seed}: {bucket}");
                let (egress, ingress) = (bucket["egress_bytes"].as_u64(), bucket["ingress_bytes"].as_u64());
                let traffic = observer.traffic(team, None, &span);
                assert_eq!((egress, ingress), (Some(traffic.0), Some(traffic.1)), "seed {seed}: {bucket}");
                whole = (whole.0 + found.0, whole.1 + found.1);
            }
            let totals = &used["totals"];
            let found = (thousandths(&totals["vcpu_seconds"]), memory_mb_ms(&totals["memory_gib_seconds"]));
            assert_eq!((found, found), (whole, observer.sums(team, None, &range)), "seed {seed}");
        }
        let all = START..end;
        for (sandbox, id) in ids.iter().enumerate() {
            let used = host.call("GET", &format!("{}&sandbox_id={id}", path(&all, "day")), key, None).await.expect(200);
            let expected = observer.sums(team, Some(sandbox), &all).0;
            assert_eq!(thousandths(&used["totals"]["vcpu_seconds"]), expected, "seed {seed}: {id}");
            let expected = observer.traffic(team, Some(sandbox), &all).0;
            assert_eq!(used["totals"]["egress_bytes"].as_u64(), Some(expected), "seed {seed}: {id}");
        }
    }
}
