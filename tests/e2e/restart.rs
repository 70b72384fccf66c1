//! An agent that starts with another configuration.

use support::{Host, wait_for};

tests! {
    shared: [],
    alone: [with_the_console_on_what_kernel_and_programs_print_is_in_the_logs],
}

async fn with_the_console_on_what_kernel_and_programs_print_is_in_the_logs() {
    let host = Host::shared();
    host.set_agent("console", "true");
    host.kill_agent().await;
    let sandbox = host.sandbox().await;
    sandbox.root_sh("echo printed by a program > /dev/console").await;

    let printed = wait_for("the line is in the logs", || async {
        let logs = host.client.logs(&sandbox.id).await.unwrap();
        let console: Vec<_> = logs.into_iter().filter(|entry| entry.source == "console").collect();
        console.iter().any(|entry| entry.message.contains("printed by a program")).then_some(console)
    })
    .await;

    assert!(printed.iter().any(|entry| entry.message.contains("Linux version")));
    host.set_agent("console", "false");
    host.kill_agent().await;
}
