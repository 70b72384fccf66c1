//! `kill -9` of the agent in every phase of everything that has to do with snapshots. What was acknowledged holds; what
//! was not leaves a sandbox that goes on; and nothing is left that belongs to nobody.
//!
//! The phases are those that the agent's files show: each operation is done again and again, the agent being killed once
//! before any of them has changed, then at the first change, the second, the fourth, and so on, until the operation is over
//! first. With a real guest an agent's death takes seconds; `agent/tests` has it die at every point there is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{COUNTER, Checkpoint, Dialogue, Host, Sandbox, wait_until};

tests! {
    shared: [],
    alone: [
        a_pause_holds_if_it_was_acknowledged_and_else_the_sandbox_goes_on,
        a_resume_holds_if_it_was_acknowledged_and_else_can_be_asked_for_again,
        a_checkpoint_of_the_disk_can_be_restored_if_it_was_acknowledged,
        a_checkpoint_with_memory_can_be_restored_if_it_was_acknowledged,
        the_forks_of_a_sandbox_live_if_they_were_acknowledged_and_else_there_are_none,
        a_sandbox_is_gone_if_its_delete_was_acknowledged_and_else_can_be_deleted_again,
    ],
}

async fn a_pause_holds_if_it_was_acknowledged_and_else_the_sandbox_goes_on() {
    let host = Host::shared();
    let mut sandbox = Subject::start().await;
    let mut phases = Phases::new();
    while let Some(point) = phases.next() {
        let paused = phases.kill_agent_during(sandbox.sandbox.pause()).await;

        let state = sandbox.rests().await;
        let acknowledged = outcome(&paused);
        assert!(paused.is_err() || state == "stopped", "at {point}, {acknowledged}: it is {state}");
        sandbox.goes_on(&format!("agent killed at {point} of a pause, {acknowledged}, then {state}")).await;
        host.leaks_nothing().await;
    }
    host.leaves_nothing(sandbox.sandbox).await;
}

async fn a_resume_holds_if_it_was_acknowledged_and_else_can_be_asked_for_again() {
    let host = Host::shared();
    let mut sandbox = Subject::start().await;
    let mut phases = Phases::new();
    while let Some(point) = phases.next() {
        sandbox.sandbox.pause().await.expect("the sandbox is paused");
        let resumed = phases.kill_agent_during(host.client.resume(&sandbox.sandbox.id, None)).await;

        let state = sandbox.rests().await;
        let acknowledged = outcome(&resumed);
        assert!(resumed.is_err() || state == "ready", "at {point}, {acknowledged}: it is {state}");
        sandbox.goes_on(&format!("agent killed at {point} of a resume, {acknowledged}, then {state}")).await;
        host.leaks_nothing().await;
    }
    host.leaves_nothing(sandbox.sandbox).await;
}

async fn a_checkpoint_of_the_disk_can_be_restored_if_it_was_acknowledged() {
    checkpoint_at_every_point(false).await;
}

async fn a_checkpoint_with_memory_can_be_restored_if_it_was_acknowledged() {
    checkpoint_at_every_point(true).await;
}

async fn the_forks_of_a_sandbox_live_if_they_were_acknowledged_and_else_there_are_none() {
    let host = Host::shared();
    let mut sandbox = Subject::start().await;
    let mut phases = Phases::new();
    while let Some(point) = phases.next() {
        let forked = phases.kill_agent_during(sandbox.sandbox.fork(2)).await;

        let acknowledged = outcome(&forked);
        let what = format!("agent killed at {point} of a fork, {acknowledged}");
        for fork in forked.unwrap_or_default() {
            assert_eq!(state_at_rest(&fork.id).await, "ready", "{what}");
            assert_eq!(fork.out("cat kept; hostname").await, format!("kept\n{}\n", fork.id), "{what}");
            assert_eq!(Dialogue::attach(&fork, sandbox.counter).await.ask("check").await, "whole", "{what}");
            host.leaves_nothing(fork).await;
        }
        // Forks that nobody was told of are leaks.
        host.leaks_nothing().await;
        assert_eq!(sandbox.rests().await, "ready", "{what}");
        sandbox.goes_on(&what).await;
    }
    host.leaves_nothing(sandbox.sandbox).await;
}

async fn a_sandbox_is_gone_if_its_delete_was_acknowledged_and_else_can_be_deleted_again() {
    let host = Host::shared();
    let mut phases = Phases::new();
    while let Some(point) = phases.next() {
        let sandbox = host.sandbox().await;
        let traces = host.traces_of(&sandbox.id);

        let deleted = phases.kill_agent_during(host.client.delete(&sandbox.id)).await;

        let shown = host.client.show(&sandbox.id).await;
        let acknowledged = outcome(&deleted);
        assert!(
            deleted.is_err() || shown.as_ref().is_err_and(|error| error.status() == Some(404)),
            "at {point}, {acknowledged}: {shown:?}"
        );
        wait_until("the sandbox is deleted, now or before", || async {
            match host.client.delete(&sandbox.id).await {
                Ok(()) => Ok(()),
                Err(error) if error.status() == Some(404) => Ok(()),
                Err(error) => Err(format!("at {point}, {acknowledged}: {error}")),
            }
        })
        .await;
        traces.are_gone().await;
        host.leaks_nothing().await;
    }
}

/// A sandbox with a file and a program that would notice if anything was lost.
struct Subject {
    sandbox: Sandbox,
    /// The program's process.
    counter: u32,
}

impl Subject {
    async fn start() -> Self {
        let sandbox = Host::shared().sandbox().await;
        sandbox.out("echo kept > kept").await;
        let mut counter = Dialogue::start(&sandbox, COUNTER).await;
        counter.grows("count", 0).await;
        Self { counter: counter.pid(), sandbox }
    }

    /// See [`state_at_rest`].
    async fn rests(&self) -> String {
        state_at_rest(&self.sandbox.id).await
    }

    /// Panics unless the sandbox, live or stopped, is resumed with its file and its program.
    async fn goes_on(&mut self, what: &str) {
        let resumed = self.sandbox.resume(None).await;
        resumed.unwrap_or_else(|error| panic!("{what}: it cannot be resumed: {error}"));
        assert_eq!(self.sandbox.out("cat kept").await, "kept\n", "{what}");
        let mut counter = Dialogue::attach(&self.sandbox, self.counter).await;
        assert_eq!(counter.ask("check").await, "whole", "{what}");
        let count = counter.ask_number("count").await;
        counter.grows("count", count).await;
    }
}

async fn checkpoint_at_every_point(memory: bool) {
    let host = Host::shared();
    let mut sandbox = Subject::start().await;
    let mut phases = Phases::new();
    while let Some(point) = phases.next() {
        let taken = phases.kill_agent_during(sandbox.sandbox.checkpoint(memory)).await;

        let acknowledged = outcome(&taken);
        let what = format!("agent killed at {point} of a checkpoint, {acknowledged}");
        assert_eq!(sandbox.rests().await, "ready", "{what}");
        sandbox.goes_on(&what).await;
        if let Ok(checkpoint) = taken {
            is_restored(&checkpoint, memory.then_some(sandbox.counter), &what).await;
        }
        host.leaks_nothing().await;
    }
    host.leaves_nothing(sandbox.sandbox).await;
}

/// Panics unless a checkpoint of a [`Subject`] can be started from, with the process if it was kept.
async fn is_restored(checkpoint: &Checkpoint, process: Option<u32>, what: &str) {
    let host = Host::shared();
    let restored = host.restore(checkpoint).await;
    assert_eq!(restored.out("cat kept").await, "kept\n", "{what}");
    if let Some(process) = process {
        assert_eq!(Dialogue::attach(&restored, process).await.ask("check").await, "whole", "{what}");
    }
    host.leaves_nothing(restored).await;
}

/// The phases of an operation, one after another.
struct Phases {
    /// The next one: how many changes the agent makes before it is killed.
    next: usize,
    /// Whether the operation was over before it had made so many.
    are_over: bool,
}

impl Phases {
    /// Between two looks at the agent's files.
    const GLANCE: Duration = Duration::from_millis(1);

    fn new() -> Self {
        Self { next: 0, are_over: false }
    }

    /// Whether there is another one; its name.
    fn next(&self) -> Option<String> {
        (!self.are_over).then(|| format!("change {}", self.next))
    }

    /// Does something, and kills the agent when that has come to the next phase, or to its end; comes back when another
    /// agent is up.
    async fn kill_agent_during<T>(&mut self, operation: impl Future<Output = T>) -> T {
        let is_over = AtomicBool::new(false);
        let operation = async {
            let outcome = operation.await;
            is_over.store(true, Ordering::Relaxed);
            outcome
        };
        let kill = async {
            let (mut seen, mut left) = (progress(), self.next);
            while left > 0 && !is_over.load(Ordering::Relaxed) {
                tokio::time::sleep(Self::GLANCE).await;
                let now = progress();
                left -= usize::from(now != seen);
                seen = now;
            }
            self.are_over = left > 0;
            self.next = (self.next * 2).max(1);
            Host::shared().kill_agent().await;
        };
        tokio::join!(operation, kill).0
    }
}

/// How far the agent's files say that it is: their names, what the records hold, and whether there are data in the others.
fn progress() -> BTreeSet<String> {
    let host = Host::shared();
    let mut found = BTreeSet::new();
    let mut folders = host.folders();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(data)) = (entry.path(), entry.metadata()) else { continue };
            let content = match path.extension() {
                Some(extension) if extension == "json" => std::fs::read_to_string(&path).unwrap_or_default(),
                _ => (data.len() > 0).to_string(),
            };
            found.insert(format!("{} {content}", path.display()));
            if data.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

/// The state in which a sandbox has come to rest, once agent and API say the same.
async fn state_at_rest(id: &str) -> String {
    let host = Host::shared();
    wait_until("the sandbox comes to rest", || async {
        let agent = host.agent_view(id).await.map_err(|error| format!("the agent: {error}"))?;
        let shown = host.client.show(id).await.map_err(|error| format!("the API: {error}"))?;
        let of_agent = format!("{:?}", agent.state).to_lowercase();
        let rests = ["ready", "stopped", "failed"].contains(&shown.state.as_str());
        if rests && of_agent == shown.state {
            return Ok(shown.state);
        }
        Err(format!("the agent says {of_agent}, the API {}; {:?}", shown.state, agent.error))
    })
    .await
}

/// Whether an operation was acknowledged, for messages.
fn outcome<T>(result: &Result<T, sandpiper::client::ClientError>) -> String {
    match result {
        Ok(_) => "acknowledged".to_owned(),
        Err(error) => format!("not acknowledged ({error})"),
    }
}
