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
    let pausing = pause(agent, &running);
    pin!(pausing);
    let mut is_warned = false;
    loop {
        tokio::select! {
            () = &mut pausing => return,
            () = stop.recv() => {}
        }
        let running = lock(&running).iter().cloned().collect::<Vec<_>>().join(", ");
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

/// Pauses all that run; each leaves `running` when it has come to rest.
async fn pause(agent: &AgentSocket, running: &Mutex<BTreeSet<String>>) {
    let list = match agent.get::<SandboxList>("/sandboxes").await {
        Ok(list) => list.sandboxes,
        Err(error) => return eprintln!("sandboxes cannot be paused; their disks are kept. {error:#}"),
    };
    let runs = |sandbox: &Sandbox| !matches!(sandbox.state, SandboxState::Stopped | SandboxState::Failed);
    let ids: Vec<String> = list.into_iter().filter(runs).map(|sandbox| sandbox.id.to_string()).collect();
    let count = ids.len();
    lock(running).extend(ids.iter().cloned());
    let one = async |id: String| (agent.post::<Sandbox>(&format!("/sandboxes/{id}/pause"), &json!({})).await, id);
    let mut paused = stream::iter(ids).map(one).buffer_unordered(AT_A_TIME).enumerate();
    while let Some((before, (result, id))) = paused.next().await {
        lock(running).remove(&id);
        match result {
            Ok(_) => eprintln!("paused {id} ({} of {count})", before + 1),
            Err(error) => eprintln!("{id} is not paused: what runs in it is lost, its disk is kept. {error:#}"),
        }
    }
}

fn lock(running: &Mutex<BTreeSet<String>>) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
