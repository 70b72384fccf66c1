//! The end of a host whose machines end with it: sandboxes are paused first, and go on from there after its next start.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use futures_util::{StreamExt, stream};
use sandpiper_protocol::agent::{Sandbox, SandboxList, SandboxState};
use serde_json::json;
use tokio::pin;

use super::StopSignals;
use crate::agent_socket::AgentSocket;

/// Sandboxes that are paused side by side: all write their memory to the same disk.
const AT_A_TIME: usize = 2;

/// Pauses all that run, and says how far that is. A signal meanwhile is told what would be lost; at the next one it is.
pub(super) async fn all(agent: &AgentSocket, stop: &mut StopSignals) {
    let running = Mutex::new(BTreeSet::new());
    let pausing = async {
        if let Err(error) = pause(agent, &running).await {
            eprintln!("sandboxes cannot be paused; their disks are kept. {error:#}");
        }
        let running = names(&running);
        if !running.is_empty() {
            eprintln!("not paused: {running}. What runs in them is lost; their disks are kept");
        }
    };
    pin!(pausing);
    let mut is_warned = false;
    loop {
        tokio::select! {
            () = &mut pausing => return,
            () = stop.recv() => {}
        }
        let running = names(&running);
        if is_warned {
            eprintln!("not paused: {running}. What ran in them is lost; their disks are kept");
            return;
        }
        is_warned = true;
        eprintln!(
            "still running: {running}. Ending now loses what runs in them; their disks are kept. To end all the same, \
             press Ctrl-C again"
        );
    }
}

/// Pauses all that run, and says how far that is; how many were paused. Each is in `running` until it has come to rest: what
/// is left there goes on.
///
/// # Errors
///
/// The agent does not say which run.
pub(crate) async fn pause(agent: &AgentSocket, running: &Mutex<BTreeSet<String>>) -> anyhow::Result<usize> {
    let list = agent.get::<SandboxList>("/sandboxes").await?.sandboxes;
    let runs = |sandbox: &Sandbox| !matches!(sandbox.state, SandboxState::Stopped | SandboxState::Failed);
    let ids: Vec<String> = list.into_iter().filter(runs).map(|sandbox| sandbox.id.to_string()).collect();
    let count = ids.len();
    lock(running).extend(ids.iter().cloned());
    let one = async |id: String| (agent.post::<Sandbox>(&format!("/sandboxes/{id}/pause"), &json!({})).await, id);
    let mut paused = stream::iter(ids).map(one).buffer_unordered(AT_A_TIME).enumerate();
    while let Some((before, (result, id))) = paused.next().await {
        match result {
            Ok(_) => {
                lock(running).remove(&id);
                eprintln!("paused {id} ({} of {count})", before + 1);
            }
            Err(error) => eprintln!("{id} is not paused: {error:#}"),
        }
    }
    Ok(count - lock(running).len())
}

fn names(running: &Mutex<BTreeSet<String>>) -> String {
    lock(running).iter().cloned().collect::<Vec<_>>().join(", ")
}

fn lock(running: &Mutex<BTreeSet<String>>) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
