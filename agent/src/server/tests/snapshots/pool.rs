//! Monitors that wait for a machine.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_waits_for_the_next_start_and_is_replaced_when_it_dies() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let monitors = || {
        let entries = fs::read_dir(agent.folder.path().join("state/monitors")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let waiting = || {
        let prepared = agent.sandboxes.context().launcher.pool.waiting();
        (prepared == 1).then(|| monitors()[0].clone())
    };
    let monitor_of = |sandbox: &Sandbox| sandbox.record()["process"]["id"].as_str().unwrap().to_owned();
    let (first, _) = agent.create(create(&template)).await;
    agent.warm().await;
    eventually(|| waiting().is_some()).await;
    let monitor = waiting().unwrap();
    assert_ne!(monitor_of(&first), monitor);

    let (second, _) = agent.create(create(&template)).await;
    assert_eq!(monitor_of(&second), monitor);
    eventually(|| waiting().is_some_and(|next| next != monitor)).await;
    let doomed = waiting().unwrap();
    monitor::kill(&agent.folder.path().join("state/monitors").join(&doomed));
    let (third, _) = agent.create(create(&template)).await;

    assert_ne!(monitor_of(&third), doomed);
    assert!(!agent.folder.path().join("state/monitors").join(&doomed).exists());
    agent.end().await;
}
