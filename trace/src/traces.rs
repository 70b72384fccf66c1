//! Traces in memory: the newest of them, each of bounded length.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sandpiper_protocol::trace::{Step, Trace};

use crate::now_us;

/// As many are kept.
const KEPT: usize = 256;

/// Steps of one trace, as many as twenty forks have; what comes after them is not written down.
const MAX_STEPS: usize = 640;

/// The newest traces of this process. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub struct Traces(Arc<Parts>);

#[derive(Debug, Default)]
struct Parts {
    kept: Mutex<VecDeque<Arc<Mutex<Recorded>>>>,
    follower: OnceLock<Follower>,
}

/// Whoever is told of traces that end.
#[derive(Debug)]
struct Follower {
    ended: SyncSender<Trace>,
    dropped: AtomicU64,
}

/// A trace while its steps come, those of several things at once among each other.
#[derive(Debug)]
struct Recorded {
    id: String,
    sandbox: Option<String>,
    /// Each with the one that it is within, which came before it.
    steps: Vec<(Step, Option<usize>)>,
}

impl Recorded {
    /// With each step behind those that it is within and before those within it.
    fn trace(&self) -> Trace {
        let mut within = vec![Vec::new(); self.steps.len()];
        for (index, (_, above)) in self.steps.iter().enumerate() {
            if let Some(within) = above.and_then(|above| within.get_mut(above)) {
                within.push(index);
            }
        }
        let (mut steps, mut next) = (Vec::with_capacity(self.steps.len()), vec![0]);
        while let Some(index) = next.pop() {
            let (Some((step, _)), Some(within)) = (self.steps.get(index), within.get(index)) else { continue };
            steps.push(step.clone());
            next.extend(within.iter().rev());
        }
        Trace { id: self.id.clone(), sandbox: self.sandbox.clone(), steps }
    }
}

impl Traces {
    /// Those that are about this sandbox, or all, newest first.
    pub fn list(&self, sandbox: Option<&str>) -> Vec<Trace> {
        let kept: Vec<_> = locked(&self.0.kept).iter().rev().cloned().collect();
        let traces = kept.iter().map(|trace| locked(trace).trace());
        traces.filter(|trace| sandbox.is_none() || trace.sandbox.as_deref() == sandbox).collect()
    }

    pub(crate) fn begin(&self, id: String, by: &str, name: &str) -> Place {
        let trace = Arc::new(Mutex::new(Recorded { id, sandbox: None, steps: vec![(begun(by, name, 0), None)] }));
        let mut kept = locked(&self.0.kept);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&trace));
        Place { trace, step: Some(0), depth: 0, of: self.clone() }
    }

    /// The traces that end from now on. At most `most` wait; what comes while so many do is dropped. `None` where somebody has
    /// them already.
    pub fn follow(&self, most: usize) -> Option<Receiver<Trace>> {
        let (ended, receiver) = sync_channel(most);
        self.0.follower.set(Follower { ended, dropped: AtomicU64::new(0) }).ok()?;
        Some(receiver)
    }

    /// How many traces were dropped since this was asked last.
    pub fn take_dropped(&self) -> u64 {
        self.0.follower.get().map_or(0, |follower| follower.dropped.swap(0, Ordering::Relaxed))
    }

    fn ended(&self, trace: &Mutex<Recorded>) {
        let Some(follower) = self.0.follower.get() else { return };
        let whole = locked(trace).trace();
        if follower.ended.try_send(whole).is_err() {
            follower.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One step of a trace.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    trace: Arc<Mutex<Recorded>>,
    /// `None`: the trace had its most steps before.
    step: Option<usize>,
    depth: u32,
    of: Traces,
}

impl Place {
    pub(crate) fn id(&self) -> String {
        locked(&self.trace).id.clone()
    }

    pub(crate) fn about(&self, sandbox: &str) {
        locked(&self.trace).sandbox = Some(sandbox.to_owned());
    }

    /// Begins a step within this one.
    pub(crate) fn step(&self, by: &str, name: &str) -> Self {
        let depth = self.depth + 1;
        Self { trace: Arc::clone(&self.trace), step: self.push(begun(by, name, depth)), depth, of: self.of.clone() }
    }

    /// Adds a whole step within this one.
    pub(crate) fn add(&self, by: &str, name: &str, start_us: u64, end_us: u64) {
        let step = Step { end_us: Some(end_us), start_us, ..begun(by, name, self.depth + 1) };
        self.push(step);
    }

    pub(crate) fn end(&self, now_us: u64) {
        let Some(step) = self.step else { return };
        if let Some((step, _)) = locked(&self.trace).steps.get_mut(step) {
            step.end_us = Some(now_us);
        }
        if self.depth == 0 {
            self.of.ended(&self.trace);
        }
    }

    fn push(&self, step: Step) -> Option<usize> {
        let mut trace = locked(&self.trace);
        let next = trace.steps.len();
        if next == MAX_STEPS {
            return None;
        }
        trace.steps.push((step, self.step));
        Some(next)
    }
}

fn begun(by: &str, name: &str, depth: u32) -> Step {
    Step { name: name.to_owned(), by: by.to_owned(), depth, start_us: now_us(), end_us: None }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
