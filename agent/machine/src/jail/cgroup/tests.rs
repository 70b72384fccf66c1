//! Real cgroups, and what is read of a host about them.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use sandpiper_skip::skipped;

use super::*;

const LIMITS: Limits = Limits { cpus: 2, memory_bytes: 96 << 20, tasks: 66 };

/// Real cgroups for one test; `None`, said aloud, where there are none to be had.
pub(crate) fn for_one(test: &str) -> Option<(Cgroups, String)> {
    let name = format!("test-{test}-{}", std::process::id());
    let cgroups = nix::unistd::Uid::effective().is_root().then(|| Cgroups::open(&name).unwrap());
    match cgroups {
        Some(cgroups) if !cgroups.trees.is_empty() => Some((cgroups, format!("sbx{test}"))),
        _ => {
            skipped("cgroups of monitors", "this needs root and cgroups");
            None
        }
    }
}

impl Cgroups {
    /// The folders of the cgroup `id`.
    pub(crate) fn folders(&self, id: &str) -> impl Iterator<Item = PathBuf> {
        self.trees.iter().map(move |tree| tree.path.join(id))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for tree in &self.trees {
            let _ = fs::remove_dir(&tree.path);
        }
    }
}

/// A process in `cgroup`, ended with the test.
pub(crate) struct Member(pub(crate) Child);

impl Member {
    fn start(cgroup: &Cgroup) -> Self {
        Self::start_as(0, cgroup)
    }

    pub(crate) fn start_as(uid: u32, cgroup: &Cgroup) -> Self {
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).uid(uid).spawn().unwrap();
        for mut entry in &cgroup.entries {
            entry.write_all(child.id().to_string().as_bytes()).unwrap();
        }
        Self(child)
    }

    fn groups(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.0.id())).unwrap()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a file of a cgroup holds, wherever it is.
fn value(cgroups: &Cgroups, id: &str, file: &str) -> Option<String> {
    let text = cgroups.trees.iter().find_map(|tree| fs::read_to_string(tree.path.join(id).join(file)).ok())?;
    Some(text.trim().to_owned())
}

#[test]
fn a_group_has_limits_and_members_and_is_gone_after_them() {
    let Some((cgroups, id)) = for_one("limits") else { return };

    let cgroup = cgroups.create(&id, &LIMITS).unwrap();
    assert_eq!(cgroups.list().unwrap(), std::slice::from_ref(&id));
    let either = |one: &str, two: &str| value(&cgroups, &id, one).or_else(|| value(&cgroups, &id, two));
    let cpu = either("cpu.cfs_quota_us", "cpu.max").expect("a limit on CPU time");
    assert_eq!(cpu.trim_end_matches(" 100000"), "300000");
    assert_eq!(either("memory.limit_in_bytes", "memory.max").expect("a limit on memory"), "100663296");
    assert_eq!(value(&cgroups, &id, "pids.max").expect("a limit on threads"), "66");

    let member = Member::start(&cgroup);
    assert!(member.groups().contains(&format!("/{id}\n")), "{}", member.groups());
    drop(member);

    cgroups.remove(&id).unwrap();
    cgroups.remove(&id).unwrap();
    assert!(cgroups.list().unwrap().is_empty());
}

#[test]
fn what_is_in_a_group_is_killed_before_it_is_removed() {
    let Some((cgroups, id)) = for_one("members") else { return };
    let cgroup = cgroups.create(&id, &LIMITS).unwrap();
    let mut members = [1001, 1002].map(|uid| Member::start_as(uid, &cgroup));
    assert_eq!(cgroups.users(&id), [1001, 1002].into());

    cgroups.remove(&id).unwrap();

    for member in &mut members {
        assert_eq!(member.0.wait().unwrap().signal(), Some(9));
    }
    assert!(cgroups.list().unwrap().is_empty());
}

#[test]
fn a_group_is_found_by_the_next_agent_of_the_same_name() {
    let Some((cgroups, id)) = for_one("next") else { return };
    cgroups.create(&id, &LIMITS).unwrap();
    let next = for_one("next").unwrap().0;
    assert_eq!(next.list().unwrap(), std::slice::from_ref(&id));
    next.remove(&id).unwrap();
}

#[test]
fn an_id_is_used_once_and_is_no_path() {
    let Some((cgroups, id)) = for_one("once") else { return };
    cgroups.create(&id, &LIMITS).unwrap();
    assert_eq!(cgroups.create(&id, &LIMITS).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    for wrong in ["", "..", "a/b", "/"] {
        assert_eq!(cgroups.create(wrong, &LIMITS).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(cgroups.remove(wrong).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    cgroups.remove(&id).unwrap();
}

#[test]
fn a_limit_that_is_not_taken_is_an_error_and_leaves_nothing() {
    let Some((cgroups, id)) = for_one("refused") else { return };
    // More than any kernel counts.
    let limits = Limits { cpus: u32::MAX, ..LIMITS };
    let error = cgroups.create(&id, &limits).expect_err("too much");
    assert!(error.to_string().contains("cpu."), "{error}");
    assert!(cgroups.list().unwrap().is_empty());
}

/// Version 2 without a controller, as it is mounted beside version 1.
#[test]
fn the_second_version_takes_members_too() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.kind == "cgroup2");
    let (Some(mount), true) = (mount, nix::unistd::Uid::effective().is_root()) else {
        skipped("cgroups of version 2", "this needs root and cgroup2");
        return;
    };
    let tree = Tree { path: mount.path, version: Version::Two, controllers: Vec::new() };
    let cgroups = Cgroups::below(vec![tree], &format!("test-second-{}", std::process::id())).unwrap();
    let cgroup = cgroups.create("sbxsecond", &LIMITS).unwrap();
    let member = Member::start(&cgroup);
    assert!(member.groups().contains("/sbxsecond\n"), "{}", member.groups());
    drop(member);
    cgroups.remove("sbxsecond").unwrap();
}

#[test]
fn without_a_hierarchy_nothing_is_done() {
    let cgroups = Cgroups::below(Vec::new(), "none").unwrap();
    let cgroup = cgroups.create("sbxone", &LIMITS).unwrap();
    assert_eq!(cgroup.entry().count(), 0);
    assert!(cgroups.list().unwrap().is_empty());
    cgroups.remove("sbxone").unwrap();
}

const SECOND: &str =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
const FIRST: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
35 31 0:32 / /mnt/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

#[test]
fn the_second_version_is_used_where_its_controllers_are() {
    let trees = hierarchies(&format!("{FIRST}\n{SECOND}"), |mount| match mount.to_str() {
        Some("/sys/fs/cgroup") => "cpuset cpu io memory pids\n".to_owned(),
        _ => String::new(),
    });
    let tree = Tree { path: "/sys/fs/cgroup".into(), version: Version::Two, controllers: Controller::ALL.to_vec() };
    assert_eq!(trees, [tree]);
}

#[test]
fn the_first_version_is_used_where_the_second_offers_too_little() {
    let trees = hierarchies(FIRST, |_| "pids cpu\n".to_owned());
    let tree =
        |path: &str, controller| Tree { path: path.into(), version: Version::One, controllers: vec![controller] };
    let expected = [
        tree("/sys/fs/cgroup/cpu,cpuacct", Controller::Cpu),
        tree("/sys/fs/cgroup/memory", Controller::Memory),
        tree("/sys/fs/cgroup/pids", Controller::Pids),
    ];
    assert_eq!(trees, expected);
    assert!(hierarchies("31 23 0:28 / / rw - ext4 /dev/vda rw", |_| String::new()).is_empty());
}

#[test]
fn the_second_version_takes_all_limits_in_its_own_words() {
    let settings = |controller: Controller| controller.settings(Version::Two, &LIMITS);
    assert_eq!(settings(Controller::Cpu), [("cpu.max", "300000 100000".to_owned(), Presence::Always)]);
    let memory = settings(Controller::Memory);
    assert_eq!(memory[0], ("memory.max", "100663296".to_owned(), Presence::Always));
    assert_eq!(memory[1], ("memory.swap.max", "0".to_owned(), Presence::Optional));
    assert_eq!(memory[2], ("memory.oom.group", "1".to_owned(), Presence::Optional));
    assert_eq!(settings(Controller::Pids), [("pids.max", "66".to_owned(), Presence::Always)]);
}
