//! What was done, what was killed, and what was found to be wrong.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::comparison::{Wanted, Window};
use crate::observer::now_ms;
use crate::usage::Figures;

/// Of one drill, written by all of its parts.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// By what was done: how often it was acknowledged, and how many requests that took.
    work: BTreeMap<&'static str, Work>,
    kills: BTreeMap<&'static str, usize>,
    /// How often the monitor of a sandbox was killed.
    crashes: HashMap<String, usize>,
    /// When which monitors were killed.
    killed_monitors: HashMap<String, i64>,
    /// What clients were told of sandboxes.
    windows: Vec<Window>,
    usage: Option<Figures>,
    findings: Vec<String>,
}

#[derive(Default, Clone, Copy)]
struct Work {
    acknowledged: usize,
    requests: usize,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was acknowledged, after so many requests.
    pub(crate) fn acknowledged(&self, what: &'static str, requests: usize) {
        let mut entries = self.entries();
        let work = entries.work.entry(what).or_default();
        work.acknowledged += 1;
        work.requests += requests;
    }

    pub(crate) fn killed(&self, what: &'static str) {
        *self.entries().kills.entry(what).or_default() += 1;
    }

    /// The monitor of this sandbox is about to be killed.
    pub(crate) fn crashes(&self, sandbox: &str) {
        *self.entries().crashes.entry(sandbox.to_owned()).or_default() += 1;
    }

    /// How often the monitor of a sandbox has been killed.
    pub(crate) fn crashes_of(&self, sandbox: &str) -> usize {
        self.entries().crashes.get(sandbox).copied().unwrap_or_default()
    }

    /// This monitor was killed just after `at_ms`.
    pub(crate) fn killed_monitor(&self, id: &str, at_ms: i64) {
        self.entries().killed_monitors.insert(id.to_owned(), at_ms);
    }

    /// When which monitors were killed, in milliseconds since 1970.
    pub(crate) fn killed_monitors(&self) -> HashMap<String, i64> {
        self.entries().killed_monitors.clone()
    }

    /// A client has just been told that a sandbox is as it wanted it, for which it asked first at `asked_ms`.
    pub(crate) fn told(&self, sandbox: &str, wanted: Wanted, asked_ms: i64) {
        let window = Window { sandbox: sandbox.to_owned(), wanted, time: asked_ms..=now_ms() };
        self.entries().windows.push(window);
    }

    /// All that clients were told.
    pub(crate) fn windows(&self) -> Vec<Window> {
        self.entries().windows.clone()
    }

    /// What ran, and what is billed.
    pub(crate) fn used(&self, figures: Figures) {
        self.entries().usage = Some(figures);
    }

    /// Something is wrong.
    pub(crate) fn find(&self, finding: String) {
        eprintln!("FOUND: {finding}");
        self.entries().findings.push(finding);
    }

    pub(crate) fn findings(&self) -> Vec<String> {
        self.entries().findings.clone()
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let entries = self.entries();
        let mut table = format!("\n  {:<24}{:>14}{:>12}\n", "done", "acknowledged", "requests");
        for (what, Work { acknowledged, requests }) in &entries.work {
            let _ = writeln!(table, "  {what:<24}{acknowledged:>14}{requests:>12}");
        }
        let _ = writeln!(table, "\n  {:<24}{:>14}", "killed with -9", "times");
        for (what, times) in &entries.kills {
            let _ = writeln!(table, "  {what:<24}{times:>14}");
        }
        if let Some(usage) = &entries.usage {
            let _ = write!(table, "\n{usage}");
        }
        let _ = writeln!(table, "\n  lost, doubled or left over: {}", entries.findings.len());
        for finding in &entries.findings {
            let _ = writeln!(table, "  - {finding}");
        }
        table
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let entries = self.entries();
        let work = |(what, work): (&&'static str, &Work)| {
            ((*what).to_owned(), json!({"acknowledged": work.acknowledged, "requests": work.requests}))
        };
        json!({
            "done": entries.work.iter().map(work).collect::<serde_json::Map<_, _>>(),
            "killed": entries.kills,
            "usage": entries.usage,
            "findings": entries.findings,
        })
    }
}
