//! Hosts that end and start again, and agents that start with another configuration.

use nix::sys::signal::{Signal, kill};
use sandpiper_protocol::agent::SandboxState;
use support::{AtExit, COUNTER, Dialogue, Host, wait_for};

tests! {
    shared: [],
    alone: [
        a_host_whose_machines_end_with_it_pauses_them_first,
        with_the_console_on_what_kernel_and_programs_print_is_in_the_logs,
    ],
}

async fn a_host_whose_machines_end_with_it_pauses_them_first() {
    let host = Host::shared();
    host.restart_up(AtExit::Pause).await;
    let mut sandbox = host.sandbox().await;
    let mut counter = Dialogue::start(&sandbox, COUNTER).await;
    counter.grows("count", 0).await;
    // The pause ends when this one goes on, and no sooner.
    let monitor = host.monitor_of(&sandbox.id).expect("it runs");
    kill(monitor, Signal::SIGSTOP).expect("the monitor is ours to stop");

    host.interrupt_up();
    wait_for("it is being paused", || async {
        let state = host.agent_view(&sandbox.id).await.ok()?.state;
        (state == SandboxState::Stopping).then_some(())
    })
    .await;
    host.interrupt_up();

    let warning = format!("still running: {}. Ending now loses what runs in them", sandbox.id);
    wait_for("the second Ctrl-C is told what it would lose", || async {
        std::fs::read_to_string(host.log()).unwrap().contains(&warning).then_some(())
    })
    .await;
    kill(monitor, Signal::SIGCONT).expect("the monitor is ours to start");
    host.start_up_again(AtExit::Destroy).await;
    sandbox.resume(None).await.expect("it is resumed");
    assert_eq!(Dialogue::attach(&sandbox, counter.pid()).await.ask("check").await, "whole");
    host.leaves_nothing(sandbox).await;
}

async fn with_the_console_on_what_kernel_and_programs_print_is_in_the_logs() {
    let host = Host::shared();
    host.set_agent("console", true);
    host.kill_agent().await;
    let sandbox = host.sandbox().await;
    sandbox.root_sh("echo printed by a program > /dev/console").await;

    let printed = wait_for("the line is in the logs", || async {
        let logs = host.client.logs(&sandbox.id, None).await.unwrap();
        let console: Vec<_> = logs.into_iter().filter(|entry| entry.source == "console").collect();
        console.iter().any(|entry| entry.message.contains("printed by a program")).then_some(console)
    })
    .await;

    assert!(printed.iter().any(|entry| entry.message.contains("Linux version")));
    host.set_agent("console", false);
    host.kill_agent().await;
}
