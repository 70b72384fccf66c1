//! A process that is killed while it makes slots and takes them away.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandpiper_network::slots::Slots;

use super::host::{config, on_a_host};

const CHILD: &str = "SANDPIPER_TEST_CHILD";

/// What the process does that is killed.
#[test]
#[ignore = "is no test: it is started, and killed, by the next one"]
fn a_process_that_makes_slots_until_it_is_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let work = async {
        let slots = Slots::start(config(|config| config.pool = 4), &[]).await.unwrap();
        loop {
            let taken = futures_util::future::try_join_all((0..3).map(|_| slots.take())).await.unwrap();
            for slot in taken {
                slots.destroy(slot).await;
            }
        }
    };
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

#[test]
fn whenever_a_process_is_killed_the_next_one_leaves_nothing_of_it() {
    on_a_host(async |host| {
        let before = host.traces();
        // Points in time that fall into all steps of making and taking away.
        for step in 0..25 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "slots::killed::a_process_that_makes_slots_until_it_is_killed"])
                .env(CHILD, "1")
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let life = Duration::from_millis(10 + step * 17);
            assert!(
                tokio::task::spawn_blocking(move || {
                    std::thread::sleep(life);
                    child.kill().unwrap();
                    child.wait().unwrap()
                })
                .await
                .unwrap()
                .signal()
                .is_some()
            );

            let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
            let [namespaces, links, _, meters] = host.traces();
            assert_eq!([namespaces, links, meters], [0, 1, 3].map(|of| before[of].clone()), "killed after {life:?}");
            slots.close().await;
            assert_eq!(host.traces(), before, "killed after {life:?}");
        }
    });
}
