//! Snapshots that are made before anybody has asked for them.

use super::*;

/// An agent with these settings.
async fn agent_with(warm: config::Warm) -> Agent {
    let folder = tempfile::tempdir().unwrap();
    let monitor_pool = config::MonitorPool { per_shape: 1 };
    let vmm = monitor::program(folder.path());
    Agent::start_with(folder, Config { vmm, monitor_pool, warm, parking: NONE_PARKED, ..Config::default() }).await
}

impl Agent {
    /// Says that sandboxes will come with these root disks.
    async fn offer(&self, root_disks_gib: &[u32]) {
        let body = json!({"root_disks_gib": root_disks_gib}).to_string();
        assert_eq!(self.ask("PUT", "/plans", body).await, (204, String::new()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_sandbox_of_the_hosts_template_is_warm_in_the_sizes_of_the_plans_while_there_is_room() {
    let agent = agent_with(config::Warm { max: 3, ..Default::default() }).await;
    let template = agent.import().await.id;
    agent.import_helper().await;

    agent.offer(&[2, 3]).await;
    let context = agent.sandboxes.context();
    eventually(|| context.warm.count() == 3).await;

    for disk_gib in [2, 3] {
        let mut request = create(&template);
        (request["memory_mb"], request["disk_gib"]) = (json!(256), json!(disk_gib));
        assert_eq!(agent.create(request).await.1["start"], "warm", "{disk_gib}");
    }
    let sizes = |agent: &Agent| {
        let snapshots = agent.sandboxes.context().warm.list();
        let mut sizes: Vec<_> = snapshots.iter().map(|one| one.snapshot.disk_gib).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(&agent), [1, 2, 3], "of 1 GiB is the bare one");
    agent.offer(&[2, 3, 4]).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(sizes(&agent), [1, 2, 3], "nothing gives way to what nobody has asked for");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_with_another_kernel_is_made_anew_though_nobody_asks() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (sandbox, _) = agent.create(create(&template)).await;
    agent.warm().await;
    sandbox.delete().await;

    // Each agent of these tests finds a kernel that has just been installed.
    let agent = agent.follow().await;
    agent.offer(&[]).await;
    let context = agent.sandboxes.context();
    eventually(|| context.warm.count() == 2).await;

    assert_eq!(agent.create(create(&template)).await.1["start"], "warm");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_made_ahead_where_that_is_turned_off_or_while_sandboxes_come_and_go() {
    let busy = Agent::with_machines().await;
    let idle = agent_with(config::Warm { ahead: false, ..Default::default() }).await;
    let template = busy.import().await.id;
    idle.import().await;
    for agent in [&busy, &idle] {
        agent.offer(&[2]).await;
    }

    for _ in 0..13 {
        let mut request = create(&template);
        request["disk_gib"] = json!(9);
        busy.create(request).await.0.delete().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    let of_plans = |agent: &Agent| agent.sandboxes.context().warm.list().iter().any(|one| one.snapshot.disk_gib == 2);
    assert!(!of_plans(&busy) && !of_plans(&idle));
    eventually(|| of_plans(&busy)).await;
    assert_eq!(idle.sandboxes.context().warm.count(), 0);
    busy.end().await;
    idle.end().await;
}

#[tokio::test]
async fn sizes_that_make_no_sense_are_refused() {
    let agent = Agent::with_machines().await;
    for sizes in [vec![0], vec![10; 17]] {
        let (status, code, message) = agent.error("PUT", "/plans", json!({"root_disks_gib": sizes}).to_string()).await;
        assert_eq!((status, code.as_str()), (400, "invalid_request"));
        assert!(message.contains("root_disks_gib"), "{message}");
    }
    agent.end().await;
}
