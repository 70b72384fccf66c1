//! What is left of monitors that nobody knows.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::jail::cgroup::Limits;
use crate::jail::cgroup::tests::{Member, for_one};

const LIMITS: Limits = Limits { cpus: 1, memory_bytes: 64 << 20, tasks: 8 };

#[test]
fn an_orphan_that_cannot_be_removed_keeps_its_user_id_and_holds_up_no_other() {
    let Some((cgroups, _)) = for_one("orphans") else { return };
    let folder = tempfile::tempdir().unwrap();
    let base = 0x2000_0000;
    let config = Config {
        program: folder.path().join("monitor"),
        per_shape: 0,
        is_jailed: true,
        uid_base: base,
        state: folder.path().join("state"),
        runtime: folder.path().join("run"),
    };
    let (stuck, free) = (cgroups.create("shla", &LIMITS).unwrap(), cgroups.create("shlb", &LIMITS).unwrap());
    // A cgroup with one below it cannot be removed.
    let below: Vec<_> = cgroups.folders("shla").map(|folder| folder.join("below")).collect();
    below.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let mut members = [Member::start_as(base, &stuck), Member::start_as(base + 1, &free)];
    let monitors = MonitorPool::new(config, String::new(), cgroups);

    monitors.sweep_cgroups().unwrap();

    for member in &mut members {
        assert_eq!(member.0.wait().unwrap().signal(), Some(9));
    }
    assert_eq!(monitors.inner.cgroups.list().unwrap(), ["shla"]);
    let uids = [monitors.claim().unwrap().1, monitors.claim().unwrap().1];
    assert_eq!(uids, [Some(base + 1), Some(base + 2)], "the first one's id is taken");

    below.iter().for_each(|folder| fs::remove_dir(folder).unwrap());
    monitors.end_left();

    assert!(monitors.inner.cgroups.list().unwrap().is_empty());
    assert_eq!(monitors.claim().unwrap().1, Some(base));
}
