//! A stopped sandbox one of whose files is damaged: it is booted from its disk where that is whole, and refused by the file's
//! name where not. Never is wrong content passed on.

use std::fs::{self, File};
use std::path::Path;

use serde_json::{Value, json};

use crate::host::{Agent, Host};

/// A sandbox that is stopped.
async fn stopped(agent: &Agent<'_>) -> String {
    let request = agent.create_request().await;
    let sandbox = agent.get("POST", "/sandboxes", request).await;
    let id = sandbox["sandbox"]["id"].as_str().unwrap().to_owned();
    agent.get("POST", &format!("/sandboxes/{id}/pause"), Value::Null).await;
    id
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_state_or_memory_is_damaged_is_booted_from_its_disk() {
    let Some(host) = Host::new() else { return };
    let agent = host.start().await;
    for (role, damage) in [("state", flip as fn(&Path)), ("state", cut), ("memory", cut)] {
        let id = stopped(&agent).await;
        damage(&host.newest(&id, role));

        let resumed = agent.get("POST", &format!("/sandboxes/{id}/resume"), json!({})).await;

        assert_eq!(resumed["sandbox"]["start"], "cold", "{role}");
        let log = agent.get("GET", &format!("/sandboxes/{id}/logs"), Value::Null).await.to_string();
        assert!(log.contains("not restored, booting from its disk; its processes are lost"), "{role}: {log}");
    }
    agent.leave_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_layer_that_was_cut_off_is_refused_by_name_until_it_is_put_back() {
    let Some(host) = Host::new() else { return };
    let agent = host.start().await;
    let id = stopped(&agent).await;
    let told = host.told(&id);
    let path = format!("/sandboxes/{id}/resume");
    let layer = host.newest(&id, "disk");
    let length = fs::metadata(&layer).unwrap().len();
    cut(&layer);

    let (status, refused) = agent.ask("POST", &path, &json!({})).await.unwrap();

    let message = refused["message"].as_str().unwrap();
    assert_eq!(status, 500, "{message}");
    assert!(message.contains(&format!("{} is damaged", layer.display())) && message.contains("backup"), "{message}");
    assert_eq!(agent.state(&id).await.as_deref(), Some("stopped"));
    // Nothing was written behind the cut.
    File::options().write(true).open(&layer).unwrap().set_len(length).unwrap();
    agent.get("POST", &path, json!({})).await;
    agent.told_more_than(&id, told).await;
    agent.leave_nothing().await;
}
