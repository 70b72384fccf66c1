//! Starts from a disk by a guest that has booted already.

use std::os::unix::fs::FileExt;

use super::*;

/// An agent with a bare snapshot, and a template of which there is no warm one.
async fn agent_with_bare() -> (Agent, String) {
    let agent = Agent::with_machines().await;
    agent.import_helper().await;
    let (first, booted) = agent.create(create(&agent.import().await.id)).await;
    assert_eq!((&booted["start"], &booted["is_bare"]), (&json!("cold"), &Value::Null));
    let context = agent.sandboxes.context();
    eventually(|| context.warm.count() == 2).await;
    first.delete().await;
    let another = agent.image();
    let image = fs::OpenOptions::new().write(true).open(another["image"].as_str().unwrap()).unwrap();
    image.write_all_at(b"another", 4096).unwrap();
    let (status, body) = agent.ask("POST", "/templates", another.to_string()).await;
    assert_eq!(status, 201, "{body}");
    let template: TemplateVersion = serde_json::from_str(&body).unwrap();
    (agent, template.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_sandbox_of_a_template_enters_its_disk_and_is_like_any_other_from_then_on() {
    let (agent, template) = agent_with_bare().await;
    let mut request = create(&template);
    request["disk_gib"] = json!(3);

    let (sandbox, view) = agent.create(request).await;

    assert_eq!((&view["start"], &view["is_bare"]), (&json!("cold"), &json!(true)));
    assert_eq!(sandbox.block(1).unwrap(), format!("{} bare 0 on 3 GiB", sandbox.id));
    assert!(sandbox.says("a guest that had booted already has entered its disk"));
    // The template's image and the sandbox's own: nothing of the disk that the guest has left.
    assert_eq!((sandbox.layers("disk").len(), sandbox.layers("memory").len()), (2, 1));
    assert_eq!(view["retained_bytes"], 0);
    sandbox.ask("pause", json!({})).await;
    let resumed = sandbox.ask("resume", json!({})).await;
    assert_eq!((&resumed["sandbox"]["start"], &resumed["sandbox"]["is_bare"]), (&json!("restored"), &Value::Null));
    assert_eq!(sandbox.block(2).unwrap(), format!("{} bare 0 on 3 GiB 1", sandbox.id));
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_snapshot_is_tried_out_by_entering_a_disk() {
    let (agent, _) = agent_with_bare().await;

    let snapshots = agent.sandboxes.context().warm.list();

    let sets = snapshots.iter().map(|one| one.folder.join(one.snapshot.files.working_set.as_ref().unwrap()));
    let mut told: Vec<_> = sets.map(|set| fs::read_to_string(set).unwrap()).collect();
    told.sort();
    assert_eq!(told, ["bare 0 on 1 GiB 1", "booted 0 1"]);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_snapshot_that_cannot_be_restored_is_thrown_away_and_the_guest_boots() {
    let (agent, template) = agent_with_bare().await;
    agent.behave("bad-snapshot");

    let (sandbox, view) = agent.create(create(&template)).await;

    assert_eq!((&view["start"], &view["is_bare"]), (&json!("cold"), &Value::Null));
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", sandbox.id));
    assert_eq!((sandbox.layers("disk").len(), sandbox.layers("memory").len()), (2, 0));
    assert!(sandbox.says("not restored, booting instead"));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_enters_no_disk_is_no_sandboxs_and_another_boots() {
    let (agent, template) = agent_with_bare().await;
    agent.behave("stays-bare");

    let (sandbox, view) = agent.create(create(&template)).await;

    assert_eq!((&view["start"], &view["is_bare"]), (&json!("cold"), &Value::Null));
    assert!(sandbox.says("The guest has not entered the sandbox's disk"));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_machine_is_parked_of_a_bare_snapshot_for_it_would_be_on_another_disk() {
    let folder = tempfile::tempdir().unwrap();
    let warm = config::Warm { enabled: false, ..config::Warm::default() };
    let vmm = monitor::program(folder.path());
    let agent = Agent::start_with(folder, Config { vmm, warm, ..Config::default() }).await;
    agent.import_helper().await;
    let template = agent.import().await.id;
    agent.create(create(&template)).await.0.delete().await;
    agent.warm().await;

    let (sandbox, view) = agent.create(create(&template)).await;

    assert_eq!((&view["start"], &view["is_bare"]), (&json!("cold"), &json!(true)));
    assert_eq!(sandbox.block(1).unwrap(), format!("{} bare 0 on 1 GiB", sandbox.id));
    assert_eq!(agent.sandboxes.context().parking.lacking(), None);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_of_before_that_stays_on_its_disk_makes_no_bare_snapshot() {
    let agent = Agent::with_machines().await;
    agent.behave("old-init");
    agent.import_helper().await;
    let template = agent.import().await.id;
    let (first, _) = agent.create(create(&template)).await;
    let context = agent.sandboxes.context();

    eventually(|| context.warm.count() == 1).await;
    // They are made one after the other, in the order of the creates that would have liked them; this one's is of another size.
    let mut request = create(&template);
    request["memory_mb"] = json!(128);
    let (second, _) = agent.create(request).await;
    eventually(|| context.warm.count() == 2).await;

    assert!(context.warm.list().iter().all(|warm| warm.snapshot.template_version == template));
    second.delete().await;
    first.delete().await;
    agent.end().await;
}
