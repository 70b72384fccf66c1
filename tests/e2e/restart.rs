//! What an agent finds when it starts: damaged files of its predecessor, and another configuration.

use std::fs;
use std::path::Path;

use support::{Host, damage, eventually, wait_for};

tests! {
    shared: [],
    alone: [
        a_sandbox_whose_record_is_damaged_is_reported_and_left_to_the_operator,
        a_template_that_is_damaged_is_reported_and_not_used,
        with_the_console_on_what_kernel_and_programs_print_is_in_the_logs,
    ],
}

async fn a_sandbox_whose_record_is_damaged_is_reported_and_left_to_the_operator() {
    let host = Host::shared();
    let bystander = host.sandbox().await;
    for (how, damage) in damage::WAYS {
        let sandbox = host.sandbox().await;
        let traces = host.traces_of(&sandbox.id);
        let repair = damaged(&host.folder_of(&sandbox.id).join("record.json"), damage);

        host.kill_agent().await;

        let id = sandbox.id.as_str();
        assert!(host.has_said(&["ERROR", id, "left alone", "record.json is damaged"]), "a record {how}");
        assert!(traces.is_alive(), "a record {how}: the monitor that it still names goes on");
        eventually("the API does not show it any more", || async {
            host.client.show(id).await.is_err_and(|error| error.status() == Some(404))
        })
        .await;
        assert_eq!(bystander.out("echo well").await, "well\n", "a record {how}");
        host.sandbox().await.delete().await;

        // Put right, it is a sandbox that the API does not know, and goes.
        repair();
        host.kill_agent().await;
        eventually("its files are gone", || async { host.files_of(id).is_empty() }).await;
        traces.process_is_gone().await;
    }
}

async fn a_template_that_is_damaged_is_reported_and_not_used() {
    let host = Host::shared();
    let bystander = host.sandbox().await;
    for (how, damage) in damage::WAYS {
        let repair = damaged(&host.template_folder().join("template.json"), damage);

        host.kill_agent().await;

        assert!(host.has_said(&["ERROR", "template left out"]), "a template {how}");
        let refused = host.try_sandbox(&support::small()).await.err().expect("there is nothing to start from");
        assert_eq!(refused.status().map(|status| status / 100), Some(5), "a template {how}: {refused}");
        assert_eq!(bystander.out("echo well").await, "well\n", "a template {how}");

        repair();
        host.kill_agent().await;
    }
    host.sandbox().await.delete().await;
}

/// Damages a file; what is given back puts it right again.
fn damaged(path: &Path, damage: fn(&Path)) -> impl FnOnce() + use<> {
    let (path, whole) = (path.to_owned(), fs::read(path).expect("the file is there"));
    damage(&path);
    move || fs::write(path, whole).expect("the file is put right")
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
