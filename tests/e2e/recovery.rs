//! `kill -9` of the agent at many points of everything that has to do with snapshots. What was acknowledged holds; what
//! was not leaves a sandbox that goes on; and nothing is left that belongs to nobody.

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

/// When the agent is killed, in milliseconds after the operation began.
const POINTS: [u64; 7] = [0, 20, 50, 100, 200, 400, 800];

async fn a_pause_holds_if_it_was_acknowledged_and_else_the_sandbox_goes_on() {
    let host = Host::shared();
    let mut sandbox = Subject::start().await;
    for point in POINTS {
        let paused = kill_agent_during(point, sandbox.sandbox.pause()).await;

        let state = sandbox.rests().await;
        let acknowledged = outcome(&paused);
        assert!(paused.is_err() || state == "stopped", "at {point} ms, {acknowledged}: it is {state}");
        sandbox.goes_on(&format!("agent killed {point} ms into a pause, {acknowledged}, then {state}")).await;
        host.leaks_nothing().await;
    }
    host.leaves_nothing(sandbox.sandbox).await;
}

async fn a_resume_holds_if_it_was_acknowledged_and_else_can_be_asked_for_again() {
    let host = Host::shared();
    let mut sandbox = Subject::start().await;
    for point in POINTS {
        sandbox.sandbox.pause().await.expect("the sandbox is paused");
        let resumed = kill_agent_during(point, host.client.resume(&sandbox.sandbox.id, None)).await;

        let state = sandbox.rests().await;
        let acknowledged = outcome(&resumed);
        assert!(resumed.is_err() || state == "ready", "at {point} ms, {acknowledged}: it is {state}");
        sandbox.goes_on(&format!("agent killed {point} ms into a resume, {acknowledged}, then {state}")).await;
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
    for point in POINTS {
        let forked = kill_agent_during(point, sandbox.sandbox.fork(2)).await;

        let acknowledged = outcome(&forked);
        let what = format!("agent killed {point} ms into a fork, {acknowledged}");
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
    for point in POINTS {
        let sandbox = host.sandbox().await;
        let traces = host.traces_of(&sandbox.id);

        let deleted = kill_agent_during(point, host.client.delete(&sandbox.id)).await;

        let shown = host.client.show(&sandbox.id).await;
        let acknowledged = outcome(&deleted);
        assert!(
            deleted.is_err() || shown.as_ref().is_err_and(|error| error.status() == Some(404)),
            "at {point} ms, {acknowledged}: {shown:?}"
        );
        wait_until("the sandbox is deleted, now or before", || async {
            match host.client.delete(&sandbox.id).await {
                Ok(()) => Ok(()),
                Err(error) if error.status() == Some(404) => Ok(()),
                Err(error) => Err(format!("at {point} ms, {acknowledged}: {error}")),
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
    for point in POINTS {
        let taken = kill_agent_during(point, sandbox.sandbox.checkpoint(memory)).await;

        let acknowledged = outcome(&taken);
        let what = format!("agent killed {point} ms into a checkpoint, {acknowledged}");
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

/// Does something, and kills the agent when that has gone on for `point` milliseconds; comes back when another agent is
/// up.
async fn kill_agent_during<T>(point: u64, operation: impl Future<Output = T>) -> T {
    let kill = async {
        tokio::time::sleep(Duration::from_millis(point)).await;
        Host::shared().kill_agent().await;
    };
    tokio::join!(operation, kill).0
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
