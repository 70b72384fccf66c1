//! `kill -9` of the host's processes, at bad moments.

use support::{Host, eventually};

tests! {
    shared: [],
    alone: [
        an_agent_that_is_killed_loses_no_sandbox_and_leaks_nothing,
        the_monitors_that_wait_for_work_end_with_their_agent_and_the_next_one_has_its_own,
        an_agent_that_is_killed_during_a_create_leaves_nothing_behind,
        a_guest_whose_agent_was_killed_keeps_the_names_that_it_gave_itself,
        a_guest_that_ends_while_no_agent_runs_is_reported_afterwards,
    ],
}

async fn an_agent_that_is_killed_loses_no_sandbox_and_leaks_nothing() {
    let host = Host::shared();
    let (first, second, third) = tokio::join!(host.sandbox(), host.sandbox(), host.sandbox());
    let sandboxes = [first, second, third];
    for sandbox in &sandboxes {
        sandbox.sh("echo $HOSTNAME > kept").await;
    }
    let monitors = host.monitors();
    assert_eq!(monitors.len(), 3);

    host.kill_agent().await;

    for sandbox in &sandboxes {
        assert_eq!(String::from_utf8_lossy(&sandbox.sh("cat kept").await.stdout), format!("{}\n", sandbox.id));
        assert_eq!(host.client.show(&sandbox.id).await.unwrap().state, "ready");
    }
    assert_eq!(host.monitors(), monitors, "the same monitors run");
    for sandbox in sandboxes {
        host.leaves_nothing(sandbox).await;
    }
}

async fn the_monitors_that_wait_for_work_end_with_their_agent_and_the_next_one_has_its_own() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    eventually("a monitor waits", || async { !host.idle().is_empty() }).await;
    let waiting = host.idle();

    host.kill_agent().await;

    eventually("none is left", || async { host.idle().iter().all(|monitor| !waiting.contains(monitor)) }).await;
    host.leaks_nothing().await;
    sandbox.out("echo the sandbox goes on").await;
    host.leaves_nothing(sandbox).await;
    host.leaves_nothing(host.sandbox().await).await;
}

async fn an_agent_that_is_killed_during_a_create_leaves_nothing_behind() {
    let host = Host::shared();
    let before = host.monitors().len();
    let request = support::small();
    let create = host.try_sandbox(&request);
    let kill = async {
        eventually("a monitor starts", || async { host.monitors().len() > before }).await;
        host.kill_agent().await;
    };

    let (created, ()) = tokio::join!(create, kill);

    match created {
        // The create was acknowledged after all: then it holds.
        Ok(sandbox) => assert_eq!(sandbox.sh("echo ok").await.stdout, b"ok\n"),
        Err(_) => eventually("nothing is left", || async { host.monitors().len() <= before }).await,
    }
    host.leaks_nothing().await;
}

async fn a_guest_whose_agent_was_killed_keeps_the_names_that_it_gave_itself() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    sandbox
        .root_sh("hostname mine && echo 192.0.2.1 mine.test >> /etc/hosts && ip route add 192.0.2.0/24 dev lo")
        .await;
    const SEEN: &str = "hostname; getent hosts mine.test; /sbin/ip route show 192.0.2.0/24";
    let before = sandbox.out(SEEN).await;
    assert!(before.starts_with("mine\n192.0.2.1"), "{before}");

    host.kill_agent().await;

    // Its guest has to be frozen for this, so it has spoken with the new agent.
    sandbox.checkpoint(false).await.expect("the checkpoint is taken").delete().await;
    assert_eq!(sandbox.out(SEEN).await, before);
    host.leaves_nothing(sandbox).await;
}

async fn a_guest_that_ends_while_no_agent_runs_is_reported_afterwards() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    // The guest goes down a little after its agent.
    let script = "(sleep 1; echo o > /proc/sysrq-trigger) > /dev/null 2>&1 &";
    sandbox.root_sh(script).await;

    host.kill_agent().await;

    eventually("the end is reported", || async {
        host.client.show(&sandbox.id).await.unwrap().error.is_some_and(|error| error.code == "guest_powered_off")
    })
    .await;
}
