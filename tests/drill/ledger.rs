//! What was done, what was killed, and what was found to be wrong.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

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
            "findings": entries.findings,
        })
    }
}
