//! The processes that were started here, by id and by tag.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_protocol::connect::Code;
use sandpiper_protocol::process::{ListResponse, ProcessInfo, ProcessSelector, StartRequest};
use tokio::time::{Instant, sleep_until};

use super::child::{self, Process};
use super::output::Subscriber;
use crate::capture::Capture;
use crate::cgroups::Cgroups;
use crate::serve::Settings;
use crate::serve::connect::Error;

/// Processes at a time.
const MAX_RUNNING: usize = 4096;

/// For how long, how many and how much of them ended processes are remembered, for clients that connect late.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
const MAX_REMEMBERED: usize = 256;
const MAX_REMEMBERED_BYTES: usize = 8 * 1024 * 1024;

/// All processes of the data plane.
#[derive(Debug, Default)]
pub(in crate::serve) struct Manager {
    state: Mutex<State>,
    /// What processes are put into.
    groups: Option<Cgroups>,
    /// What hears their streams.
    capture: Capture,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<u32, Arc<Process>>,
    /// Oldest first.
    ended: VecDeque<Ended>,
    /// A task looks after `ended`.
    forgetting: bool,
}

#[derive(Debug)]
struct Ended {
    process: Arc<Process>,
    at: Instant,
    bytes: usize,
}

impl Manager {
    pub(in crate::serve) fn new(groups: Option<Cgroups>, capture: Capture) -> Self {
        Self { groups, capture, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process as `user`, and listens to it. It goes on whatever becomes of the caller, until it ends or `deadline` comes.
    pub(super) async fn start(
        self: &Arc<Self>,
        request: StartRequest,
        user: String,
        settings: Settings,
        deadline: Option<Instant>,
    ) -> Result<(Arc<Process>, Subscriber), Error> {
        if self.state().running.len() >= MAX_RUNNING {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("{MAX_RUNNING} processes run already: end some first"),
            ));
        }
        let manager = Arc::clone(self);
        // A task of its own: a caller that goes away while the process is being made must not leave it unwatched.
        let started = tokio::spawn(async move {
            let launched = child::launch(request, user, settings, manager.groups.clone()).await?;
            let process = Arc::clone(&launched.watched.process);
            manager.state().begin(Arc::clone(&process));
            tokio::spawn({
                let process = Arc::clone(&process);
                async move {
                    child::watch(launched.watched, deadline, &manager.capture).await;
                    manager.end(process);
                }
            });
            Ok((process, launched.starter))
        });
        started.await.map_err(|error| Error::new(Code::Internal, error.to_string()))?
    }

    /// Remembers a process that has ended, for a time.
    fn end(self: &Arc<Self>, process: Arc<Process>) {
        let mut state = self.state();
        state.end(process);
        // One task for all, while there is something to forget: processes may end by the thousand.
        if !std::mem::replace(&mut state.forgetting, true) {
            tokio::spawn(Arc::clone(self).forget_in_time());
        }
    }

    async fn forget_in_time(self: Arc<Self>) {
        loop {
            let due = self.state().forget_until();
            let Some(due) = due else { return };
            sleep_until(due).await;
        }
    }

    /// Running processes, by id.
    pub(super) fn list(&self) -> ListResponse {
        let info = |process: &Arc<Process>| ProcessInfo {
            config: process.config.clone(),
            pid: process.pid,
            tag: process.tag.clone(),
        };
        let processes = self.state().running.values().filter(|process| !process.has_ended()).map(info).collect();
        ListResponse { processes }
    }

    /// A running process.
    pub(super) fn running(&self, selector: &ProcessSelector) -> Result<Arc<Process>, Error> {
        let found = self.state().find_running(selector).filter(|process| !process.has_ended());
        found.ok_or_else(|| not_found(selector))
    }

    /// A process that runs or is remembered.
    pub(super) fn any(&self, selector: &ProcessSelector) -> Result<Arc<Process>, Error> {
        let state = self.state();
        let remembered = || {
            let mut ended = state.ended.iter().rev().map(|ended| &ended.process);
            ended.find(|process| selects(selector, process)).cloned()
        };
        state.find_running(selector).or_else(remembered).ok_or_else(|| not_found(selector))
    }
}

impl State {
    fn begin(&mut self, process: Arc<Process>) {
        self.ended.retain(|ended| ended.process.pid != process.pid);
        if let Some(older) = self.running.insert(process.pid, process) {
            // Its id is free again, but a subscriber still holds its output up.
            self.remember(older);
        }
    }

    fn end(&mut self, process: Arc<Process>) {
        // By identity: the id may be another process's by now.
        if self.running.get(&process.pid).is_some_and(|running| Arc::ptr_eq(running, &process)) {
            self.running.remove(&process.pid);
            self.remember(process);
        }
    }

    fn remember(&mut self, process: Arc<Process>) {
        let now = Instant::now();
        let bytes = process.size();
        self.ended.push_back(Ended { process, at: now, bytes });
        self.forget(now);
    }

    /// Forgets what has been remembered for long enough; when to look again. `None` ends the task that asks.
    fn forget_until(&mut self) -> Option<Instant> {
        self.forget(Instant::now());
        let due = self.ended.front().map(|oldest| oldest.at + REMEMBERED_FOR);
        self.forgetting = due.is_some();
        due
    }

    fn forget(&mut self, now: Instant) {
        let mut bytes: usize = self.ended.iter().map(|ended| ended.bytes).sum();
        while let Some(oldest) = self.ended.front() {
            let is_old = now.duration_since(oldest.at) >= REMEMBERED_FOR;
            if !is_old && self.ended.len() <= MAX_REMEMBERED && bytes <= MAX_REMEMBERED_BYTES {
                return;
            }
            bytes = bytes.saturating_sub(oldest.bytes);
            self.ended.pop_front();
        }
    }

    /// By tag, the newest: a tag may be used again.
    fn find_running(&self, selector: &ProcessSelector) -> Option<Arc<Process>> {
        match selector {
            ProcessSelector::Pid(pid) => self.running.get(pid).cloned(),
            ProcessSelector::Tag(_) => self.running.values().rfind(|process| selects(selector, process)).cloned(),
        }
    }
}

fn selects(selector: &ProcessSelector, process: &Process) -> bool {
    match selector {
        ProcessSelector::Pid(pid) => process.pid == *pid,
        ProcessSelector::Tag(tag) => process.tag.as_ref() == Some(tag),
    }
}

fn not_found(selector: &ProcessSelector) -> Error {
    let which = match selector {
        ProcessSelector::Pid(pid) => format!("id {pid}"),
        ProcessSelector::Tag(tag) => format!("tag {tag:?}"),
    };
    Error::new(Code::NotFound, format!("There is no process with the {which}"))
}
