//! Volumes that come and go hundreds of times: what there is afterwards is what there was before.

use futures_util::future::join_all;
use sandpiper_protocol::id;
use serde_json::{Value, json};

use crate::host::{Agent, Host};

/// Sandboxes that live at the same time, each with a volume, and lives of each, one after the other.
const LANES: usize = 4;
const LIVES: usize = 25;
/// Of one life. Each takes the volume away and brings it back; so do its start and its resume.
const CHECKPOINTS: usize = 6;

/// With the two hundred of the end-to-end tests these are a thousand.
#[tokio::test(flavor = "multi_thread")]
async fn eight_hundred_attachments_leave_nothing() {
    let Some(host) = Host::in_memory() else { return };
    let agent = host.start().await;
    let mut request = agent.create_request().await;
    let without = live(&agent, request.clone()).await;
    let mut requests = Vec::new();
    for volume in agent.volumes(LANES).await {
        request["volume_mounts"] = json!([{"volume": volume, "path": "/data"}]);
        live(&agent, request.clone()).await;
        requests.push(request.clone());
    }
    let before = agent.footprint();

    let lane = async |request: &Value| {
        for round in 0..LIVES {
            let with = live(&agent, request.clone()).await;
            assert_eq!(with, without, "round {round}: a monitor's descriptors grew as they do not without a volume");
        }
    };
    join_all(requests.iter().map(lane)).await;

    agent.shrinks_to(&before).await;
    assert_eq!(agent.attached().await, 0);
    agent.leave_nothing().await;
}

/// The life of a sandbox; by how many descriptors its monitor grew between its start and its pause.
async fn live(agent: &Agent<'_>, mut request: Value) -> usize {
    request["id"] = json!(id::generate("sbx"));
    let path = format!("/sandboxes/{}", request["id"].as_str().unwrap());
    let id = agent.get("POST", "/sandboxes", request.clone()).await["sandbox"]["id"].as_str().unwrap().to_owned();
    let began = agent.host.descriptors_of(&id);
    for _ in 0..CHECKPOINTS {
        let order = json!({"id": id::generate("ckp"), "memory": true});
        let taken = agent.get("POST", &format!("{path}/checkpoints"), order).await;
        agent.get("DELETE", &format!("/checkpoints/{}", taken["id"].as_str().unwrap()), Value::Null).await;
    }
    let grown = agent.host.descriptors_of(&id) - began;
    agent.get("POST", &format!("{path}/pause"), Value::Null).await;
    agent.get("POST", &format!("{path}/resume"), json!({})).await;
    agent.get("DELETE", &path, Value::Null).await;
    grown
}
