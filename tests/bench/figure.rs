use serde_json::json;

/// Where figures go: lines of JSON as they come, or a table at the end.
pub(crate) struct Report {
    json: bool,
    rung: String,
    rows: Vec<[String; 6]>,
}

impl Report {
    /// `scripts/bench` says on which rung this runs.
    pub(crate) fn new(json: bool) -> Self {
        let rung = std::env::var("SANDPIPER_RUNG").unwrap_or_else(|_| "1".into());
        Self { json, rung, rows: Vec::new() }
    }

    /// Adds the figure of these samples.
    pub(crate) fn add(&mut self, bench: &str, metric: &str, unit: &str, samples: &[f64]) {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (p50, p95) = (percentile(&sorted, 50), percentile(&sorted, 95));
        if self.json {
            let rung: u8 = self.rung.parse().unwrap_or(0);
            let line = json!({"bench": bench, "metric": metric, "unit": unit, "n": sorted.len(), "p50": p50, "p95": p95, "rung": rung});
            println!("{line}");
        }
        let row = [
            bench.into(),
            metric.into(),
            unit.into(),
            sorted.len().to_string(),
            format!("{p50:.1}"),
            format!("{p95:.1}"),
        ];
        self.rows.push(row);
    }

    pub(crate) fn finish(self) {
        if self.json {
            return;
        }
        println!(
            "{:<12} {:<28} {:<6} {:>4} {:>12} {:>12}   (rung {})",
            "bench", "metric", "unit", "n", "p50", "p95", self.rung
        );
        for [bench, metric, unit, n, p50, p95] in self.rows {
            println!("{bench:<12} {metric:<28} {unit:<6} {n:>4} {p50:>12} {p95:>12}");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nothing here takes 2^52 microseconds")]
pub(crate) fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "no disk has 2^52 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The nearest-rank percentile of sorted samples; 0 where there are none.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}
