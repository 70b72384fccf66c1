//! `sandpiper trace`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use sandpiper_protocol::trace::{Step, Trace, TraceList};
use serde_json::json;

use crate::output::Output;
use crate::text::printable;

/// Columns of a bar.
const WIDTH: u64 = 48;

/// Show where the time of starts and other changes went, step by step: for operators, on the host
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper trace                       the newest change of all
  sandpiper trace sbx… --last 3         the last three that were about one sandbox
  sandpiper --json trace --last 100     for scripts: a line for each, times in microseconds

Bars show when each step ran; steps that overlap ran side by side.")]
pub(crate) struct Arguments {
    /// Only what was about this sandbox
    sandbox: Option<String>,

    /// How many, the newest first
    #[arg(long, value_name = "N", default_value_t = 1)]
    last: usize,

    /// Where the API serves its operators (`metrics_listen` in its configuration)
    #[arg(long, value_name = "URL", env = "SANDPIPER_METRICS_URL", default_value = "http://127.0.0.1:7071")]
    metrics_url: String,
}

pub(crate) async fn run(arguments: Arguments, output: Output) -> anyhow::Result<ExitCode> {
    let traces = fetch(&arguments).await?;
    for trace in traces.iter().take(arguments.last) {
        if output.is_json() {
            output.value(&json!(trace));
        } else {
            picture(trace).iter().for_each(|line| output.line(line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn fetch(arguments: &Arguments) -> anyhow::Result<Vec<Trace>> {
    let url = format!("{}/traces", arguments.metrics_url.trim_end_matches('/'));
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
    let request = http.get(&url).query(&arguments.sandbox.as_ref().map(|id| [("sandbox", id)]));
    let response = request.send().await.with_context(|| {
        format!("Cannot ask {url}: run this on the host, and see `metrics_listen` in the API's configuration for the address")
    })?;
    ensure!(response.status().is_success(), "{url} responded with {}", response.status());
    let list: TraceList = response.json().await.with_context(|| format!("{url} did not respond with traces"))?;
    let of_what = arguments.sandbox.as_deref().map_or_else(String::new, |id| format!(" about {id}"));
    ensure!(
        !list.traces.is_empty(),
        "There is no trace{of_what}: the newest 256 changes since the API's start are kept"
    );
    Ok(list.traces)
}

/// A heading, then a line with a bar for each step.
fn picture(trace: &Trace) -> Vec<String> {
    let Some(whole) = trace.steps.first() else { return Vec::new() };
    let end = trace.steps.iter().filter_map(|step| step.end_us).max().unwrap_or(whole.start_us);
    let total = end.saturating_sub(whole.start_us).max(1);
    let label = |step: &Step| format!("{:indent$}{}", "", printable(&step.name), indent = 2 * step.depth as usize);
    let labels = trace.steps.iter().map(|step| label(step).chars().count()).max().unwrap_or(0);
    let mut lines = vec![format!(
        "{}  {}  {:.1} ms  trace {}",
        printable(&whole.name),
        printable(trace.sandbox.as_deref().unwrap_or("-")),
        ms(total),
        printable(&trace.id)
    )];
    lines.push(format!("{:>9} {:>9}  {:<8} {:<labels$}", "AT, MS", "TOOK, MS", "BY", "STEP"));
    for step in &trace.steps {
        let from = step.start_us.saturating_sub(whole.start_us).min(total);
        let to = step.end_us.map_or(total, |end| end.saturating_sub(whole.start_us)).clamp(from, total);
        let took = step.end_us.map_or_else(|| "goes on".to_owned(), |_| format!("{:.1}", ms(to - from)));
        let (at, by, bar) = (ms(from), printable(&step.by), bar(from, to, total));
        lines.push(format!("{at:>9.1} {took:>9}  {by:<8} {:<labels$}  {bar}", label(step)).trim_end().to_owned());
    }
    lines
}

/// From `from` to `to` of `total`, at least one column.
fn bar(from: u64, to: u64, total: u64) -> String {
    let column = |at: u64| at * WIDTH / total;
    let first = column(from).min(WIDTH - 1);
    let length = column(to).saturating_sub(first).max(1);
    let text = |character: char, count: u64| std::iter::repeat_n(character, usize::try_from(count).unwrap_or(0));
    text(' ', first).chain(text('█', length)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn ms(microseconds: u64) -> f64 {
    microseconds as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, by: &str, depth: u32, start_us: u64, end_us: Option<u64>) -> Step {
        Step { name: name.into(), by: by.into(), depth, start_us, end_us }
    }

    #[test]
    fn each_step_has_a_line_with_its_times_and_a_bar() {
        let trace = Trace {
            id: "ab".into(),
            sandbox: Some("sbx1".into()),
            steps: vec![
                step("create", "api", 0, 1_000_000, Some(1_096_000)),
                step("agent", "api", 1, 1_048_000, Some(1_095_900)),
                step("bad\u{1b}[2J", "guest", 2, 1_095_000, None),
            ],
        };

        let lines = picture(&trace);

        assert_eq!(lines[0], "create  sbx1  96.0 ms  trace ab");
        let bars: Vec<_> = lines[2..].iter().map(|line| line.chars().filter(|c| *c == '█').count()).collect();
        assert_eq!(bars, [48, 23, 1]);
        assert!(lines[3].contains("     48.0      47.9  api        agent"), "{lines:?}");
        assert!(lines[4].contains("goes on") && !lines[4].contains('\u{1b}'), "{lines:?}");
    }

    #[test]
    fn bars_stay_within_their_columns() {
        for (from, to, total) in [(0, 0, 1), (0, 1, 1), (1, 1, 1), (999, 1000, 1000), (0, 1000, 1000)] {
            let bar = bar(from, to, total);
            assert!((1..=48).contains(&bar.chars().count()), "{from} {to} {total}: {bar:?}");
        }
    }
}
