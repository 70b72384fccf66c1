//! Where the time of changes went, as `sandpiper trace` shows it of one: medians of the steps of many.

use anyhow::Context;
use sandpiper_protocol::trace::{Trace, TraceList};
use support::Host;

use crate::report::Report;

/// The steps of some requests of one kind, in the order in which they were first seen.
pub(crate) struct TraceSteps {
    /// Such as `POST /v1/sandboxes`.
    request: &'static str,
    steps: Vec<Step>,
}

struct Step {
    /// Its name behind those of the steps that it is within.
    path: String,
    /// Milliseconds, of each request that had it.
    took: Vec<f64>,
}

impl TraceSteps {
    pub(crate) fn of(request: &'static str) -> Self {
        Self { request, steps: Vec::new() }
    }

    /// Adds those of the last such request.
    pub(crate) async fn add_last(&mut self) -> anyhow::Result<()> {
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
        let response = http.get(format!("{}/traces", Host::shared().metrics_url())).send().await?;
        let list: TraceList = response.error_for_status()?.json().await?;
        let is_such = |trace: &&Trace| trace.steps.first().is_some_and(|step| step.name == self.request);
        // The newest come first.
        let trace = list.traces.iter().find(is_such).with_context(|| format!("no {} has a trace", self.request))?;
        self.add_trace(trace);
        Ok(())
    }

    fn add_trace(&mut self, trace: &Trace) {
        let mut within: Vec<&str> = Vec::new();
        for step in &trace.steps {
            within.truncate(step.depth as usize);
            within.push(&step.name);
            let Some(end_us) = step.end_us else { continue };
            // The first one is the whole, which goes without saying.
            let path = within[1..].join("/");
            let took = end_us.saturating_sub(step.start_us) as f64 / 1000.0;
            match self.steps.iter_mut().find(|known| known.path == path) {
                Some(known) => known.took.push(took),
                None => self.steps.push(Step { path, took: vec![took] }),
            }
        }
    }

    /// A result of each step: `{prefix}_step` for the whole request, and what is within it behind a colon.
    pub(crate) fn report(self, bench: &str, prefix: &str, report: &mut Report) {
        for Step { path, took } in self.steps {
            let metric = if path.is_empty() { format!("{prefix}_step") } else { format!("{prefix}_step:{path}") };
            report.add(bench, &metric, "ms", &took);
        }
    }
}
