//! Monitors that take their time: they are waited for, and nothing is thrown away.

use sandpiper_protocol::agent::SandboxState;

use super::snapshots::eventually;
use super::*;

/// Longer than a monitor of 64 MiB ever had for a snapshot and a word on it, when it had a limit.
const LONG: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_a_checkpoint_take_as_long_as_their_monitors() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let ((one, _), (other, _)) = (agent.create(create(&template)).await, agent.create(create(&template)).await);
    agent.behave("slow");
    let slowly = async {
        one.is_eventually(SandboxState::Stopping).await;
        other.is_eventually(SandboxState::Checkpointing).await;
        eventually(|| [&one, &other].iter().all(|sandbox| monitor::has_stopped(&sandbox.monitor_folder()))).await;
        // The time is what this is about.
        tokio::time::sleep(LONG).await;
        assert_eq!((one.state().await.as_str(), other.state().await.as_str()), ("stopping", "checkpointing"));
        [&one, &other].iter().for_each(|sandbox| monitor::go_on(&sandbox.monitor_folder()));
    };

    let order = json!({"id": id::generate("ckp"), "memory": false});
    let (paused, taken, ()) = tokio::join!(one.ask("pause", json!({})), other.ask("checkpoints", order), slowly);

    assert_eq!((&paused["state"], &taken["memory"]), (&json!("stopped"), &json!(false)));
    agent.behave("");
    assert_eq!(one.ask("resume", json!({})).await["sandbox"]["start"], "restored");
    assert_eq!(other.state().await, "ready");
    other.ask("pause", json!({})).await;
    for sandbox in [&one, &other] {
        assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", sandbox.id));
    }
    assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{}", taken["id"].as_str().unwrap()), "").await.0, 204);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_does_not_wait_for_a_monitor() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    for (operation, order) in
        [("pause", json!({})), ("checkpoints", json!({"id": id::generate("ckp"), "memory": true}))]
    {
        let (sandbox, _) = agent.create(create(&template)).await;
        agent.behave("slow");
        let delete = async {
            eventually(|| monitor::has_stopped(&sandbox.monitor_folder())).await;
            sandbox.delete().await;
        };

        let ((status, _), ()) = tokio::join!(sandbox.try_ask(operation, order), delete);

        assert_eq!(status, 404);
        agent.behave("");
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_pause_an_agent_did_not_finish_is_ready_when_its_machine_runs() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let (id, folder, mut record) = (sandbox.id.clone(), sandbox.folder(), sandbox.record());
    let (monitor_folder, control) =
        (sandbox.monitor_folder(), agent.folder.path().join("run/sandboxes").join(id.as_str()).join("control.sock"));
    record["state"] = json!("stopping");
    record["pausing"] = json!(true);
    let interrupt = || {
        fs::write(folder.join("record.json"), record.to_string()).unwrap();
        monitor::pause(&control, &folder);
        monitor::stop(&monitor_folder);
    };

    let agent = agent.follow_after(interrupt).await;

    let sandbox = agent.sandbox(&id);
    assert_eq!(sandbox.state().await, "stopping");
    monitor::go_on(&monitor_folder);
    sandbox.is_eventually(SandboxState::Ready).await;
    // A machine that stood still could not be paused.
    sandbox.ask("pause", json!({})).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_layer_is_merged_that_the_monitor_may_write_to() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let ((doubtful, _), (settled, _)) = (agent.create(create(&template)).await, agent.create(create(&template)).await);
    // As an agent leaves it that was killed, time and again, before it had the answer to what it had pushed.
    let mut records = Vec::new();
    for (sandbox, unsettled) in [(&doubtful, json!("disk-1.layer")), (&settled, json!(null))] {
        let mut record = sandbox.record();
        record["unsettled"] = unsettled;
        let layers = (2..14).map(|number| format!("disk-{number}.layer"));
        for name in layers {
            fs::File::create_new(sandbox.folder().join(&name)).unwrap().set_len(1 << 30).unwrap();
            record["files"]["disk"].as_array_mut().unwrap().push(json!({"name": name, "shared": false}));
        }
        record["files"]["next"] = json!(14);
        records.push((sandbox.folder().join("record.json"), record.to_string()));
    }
    let (doubtful, settled) = (doubtful.id.clone(), settled.id.clone());

    let save = || records.iter().for_each(|(path, record)| fs::write(path, record).unwrap());
    let agent = agent.follow_after(save).await;

    let (doubtful, settled) = (agent.sandbox(&doubtful), agent.sandbox(&settled));
    eventually(|| settled.layers("disk").len() <= 9).await;
    assert_eq!(doubtful.layers("disk").len(), 14, "which comes before the other");
    let taken = doubtful.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": false})).await;
    eventually(|| doubtful.layers("disk").len() <= 9).await;
    // Its guest wrote this when the second agent told it who it is, to the layer that the monitor has on top.
    assert_eq!(doubtful.block(1).unwrap(), format!("{} booted 1", doubtful.id));
    assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{}", taken["id"].as_str().unwrap()), "").await.0, 204);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_whose_link_breaks_is_asked_again_on_the_next_one() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    agent.behave("break-link");

    sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": false})).await;

    assert_eq!(sandbox.state().await, "ready");
    agent.end().await;
}
