//! What a host has of its sandboxes: processes, files, cgroups, networks. And what it must not have.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use sandpiper_protocol::agent::{CheckpointList, SandboxList};
use sandpiper_protocol::volume::VolumeList;
use serde_json::Value;
use tempfile::TempDir;

use crate::host::{Host, NETWORK, RUNTIME_DIR, STATE_DIR, agent_get};
use crate::sandbox::Sandbox;
use crate::sighting::record_in;
use crate::wait::wait_until;

/// Variable of a monitor's environment: the folder that it was idle in.
pub(crate) const MARKER: &str = "SANDPIPER_SANDBOX=";

/// Slots that the agent keeps ready by default.
const READY_SLOTS: usize = 12;

/// What there is of a sandbox while it runs, to look for afterwards.
#[derive(Debug)]
pub struct Traces {
    pub id: String,
    /// Its monitor; a stopped sandbox has none.
    pub monitor: Option<Pid>,
    /// The cgroup folders of its monitor.
    pub cgroups: Vec<PathBuf>,
    /// The name of its network namespace.
    pub slot: Option<String>,
}

/// A monitor's process.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// The monitor's id.
    pub(crate) id: String,
}

impl Host {
    /// Monitors of this host's sandboxes: one process each.
    pub fn monitors(&self) -> Vec<Pid> {
        let running = processes();
        let mut monitors: Vec<Pid> = self.recorded().into_iter().filter(|pid| is_among(&running, *pid)).collect();
        monitors.sort_unstable();
        monitors
    }

    /// The monitor of one sandbox.
    pub fn monitor_of(&self, id: &str) -> Option<Pid> {
        let pid = pid_in(&self.record(id)?)?;
        is_among(&processes(), pid).then_some(pid)
    }

    /// Monitors that belong to no sandbox: those that wait, and one that makes a warm snapshot.
    pub fn idle(&self) -> Vec<Pid> {
        let recorded = self.recorded();
        processes().into_iter().map(|process| process.pid).filter(|pid| !recorded.contains(pid)).collect()
    }

    /// Monitors of machines that work with volumes which no sandbox has; also one that makes a warm snapshot.
    pub fn helpers(&self) -> Vec<Pid> {
        let (recorded, waiting) = (self.recorded(), names(&Path::new(STATE_DIR).join("monitors")));
        let is_helper = |process: &Process| !recorded.contains(&process.pid) && !waiting.contains(&process.id);
        processes().into_iter().filter(is_helper).map(|process| process.pid).collect()
    }

    /// Everything on disk that belongs to a sandbox, a checkpoint or a volume.
    pub fn files_of(&self, id: &str) -> Vec<PathBuf> {
        let folders =
            [(STATE_DIR, "sandboxes"), (RUNTIME_DIR, "sandboxes"), (STATE_DIR, "checkpoints"), (STATE_DIR, "volumes")];
        let paths = folders.map(|(root, folder)| Path::new(root).join(folder).join(id));
        paths.into_iter().filter(|path| path.exists()).collect()
    }

    /// The folders of everything on disk that belongs to sandboxes and checkpoints.
    pub fn folders(&self) -> Vec<PathBuf> {
        ["sandboxes", "checkpoints"].map(|folder| Path::new(STATE_DIR).join(folder)).into()
    }

    /// The folder of a sandbox's files.
    pub fn folder_of(&self, id: &str) -> PathBuf {
        Path::new(STATE_DIR).join("sandboxes").join(id)
    }

    /// The folders of warm snapshots that are complete.
    pub fn warm_folders(&self) -> Vec<PathBuf> {
        let folders = below(&Path::new(STATE_DIR).join("warm"));
        folders.into_iter().filter(|folder| folder.join("manifest.json").exists()).collect()
    }

    /// The folder of a checkpoint's files.
    pub fn checkpoint_folder(&self, id: &str) -> PathBuf {
        Path::new(STATE_DIR).join("checkpoints").join(id)
    }

    /// A folder for large files, on the file system of the host's data.
    pub fn scratch(&self) -> TempDir {
        let parent = Path::new(STATE_DIR).parent().expect("a folder around the host's data");
        tempfile::tempdir_in(parent).expect("a folder for large files")
    }

    /// What the agent has written down of a sandbox.
    pub fn record(&self, id: &str) -> Option<Value> {
        record_in(&self.folder_of(id)).map(|(record, _)| record)
    }

    /// What the agent has written down of a checkpoint.
    pub fn manifest(&self, id: &str) -> Value {
        let path = self.checkpoint_folder(id).join("manifest.json");
        let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// What there is of a sandbox now.
    pub fn traces_of(&self, id: &str) -> Traces {
        let monitor = self.monitor_of(id);
        let name = self.record(id).and_then(|record| record["process"]["id"].as_str().map(str::to_owned));
        let cgroups = name.map(|name| cgroups().into_iter().filter(|path| path.ends_with(&name)).collect());
        Traces { id: id.to_owned(), monitor, cgroups: cgroups.unwrap_or_default(), slot: self.slot_of(id) }
    }

    /// The host's end of a sandbox's network: the name of the link.
    pub fn link_of(&self, id: &str) -> Option<String> {
        Some(format!("{NETWORK}v{}", self.record(id)?["slot"].as_u64()?))
    }

    /// The name of the network namespace that a sandbox has while it runs.
    pub fn slot_of(&self, id: &str) -> Option<String> {
        Some(format!("{NETWORK}-{}", self.record(id)?["slot"].as_u64()?))
    }

    /// Destroys a sandbox and panics unless that leaves nothing of it.
    pub async fn leaves_nothing(&self, sandbox: Sandbox) {
        let traces = self.traces_of(&sandbox.id);
        sandbox.delete().await;
        traces.are_gone().await;
    }

    /// Panics unless, before long, there is nothing on this host that is of no use to anybody.
    pub async fn leaks_nothing(&self) {
        wait_until("the host has nothing that belongs to nobody", || async {
            let leaks = self.leaks().await?;
            if leaks.is_empty() { Ok(()) } else { Err(leaks.join("; ")) }
        })
        .await;
    }

    /// Monitors that wait for a sandbox.
    pub(crate) fn idle_monitors(&self) -> Vec<Process> {
        let (recorded, folders) = (self.recorded(), names(&Path::new(STATE_DIR).join("monitors")));
        let is_idle = |process: &Process| !recorded.contains(&process.pid) && folders.contains(&process.id);
        processes().into_iter().filter(is_idle).collect()
    }

    /// What there is on this host that is of no use to anybody, or not there that should be.
    pub(crate) async fn leaks(&self) -> Result<Vec<String>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let listed: SandboxList = agent_get("/sandboxes").await.map_err(|error| text(&error))?;
        let shown = self.client.list("").await.map_err(|error| text(&error))?;
        let checkpoints: CheckpointList = agent_get("/checkpoints").await.map_err(|error| text(&error))?;
        let volumes: VolumeList = agent_get("/volumes").await.map_err(|error| text(&error))?;
        let owned_volumes = self.client.volumes().await.map_err(|error| text(&error))?;
        let sandboxes: HashSet<String> = listed.sandboxes.into_iter().map(|sandbox| sandbox.id.to_string()).collect();
        let checkpoints: HashSet<String> =
            checkpoints.checkpoints.into_iter().map(|checkpoint| checkpoint.id.to_string()).collect();

        let mut leaks = Vec::new();
        for id in sandboxes.iter().filter(|id| shown.iter().all(|shown| shown.id != **id)) {
            leaks.push(format!("the API does not show {id}, which the agent has"));
        }
        for id in volumes.volumes.iter().map(|volume| volume.id.as_str()) {
            if owned_volumes.iter().all(|owned| owned.id != id) {
                leaks.push(format!("the API does not show the volume {id}, which the agent has"));
            }
        }
        let owned = [(STATE_DIR, "sandboxes", &sandboxes), (RUNTIME_DIR, "sandboxes", &sandboxes)];
        for (root, folder, known) in owned.into_iter().chain([(STATE_DIR, "checkpoints", &checkpoints)]) {
            let path = Path::new(root).join(folder);
            leaks.extend(
                names(&path)
                    .into_iter()
                    .filter(|name| !known.contains(name))
                    .map(|name| format!("{} is nobody's", path.join(name).display())),
            );
        }
        let (recorded, running) = (self.recorded(), processes());
        let folders: HashSet<String> = names(&Path::new(STATE_DIR).join("monitors")).into_iter().collect();
        for process in &running {
            if !recorded.contains(&process.pid) && !folders.contains(&process.id) {
                leaks.push(format!("monitor {} ({}) is nobody's and does not wait", process.pid, process.id));
            }
        }
        let is_dead = |monitor: &&String| running.iter().all(|process| process.id != **monitor);
        leaks.extend(folders.iter().filter(is_dead).map(|monitor| format!("the monitor {monitor} has no process")));
        let ids = names(&Path::new(STATE_DIR).join("sandboxes"));
        let used: HashSet<String> = ids.iter().filter_map(|id| self.slot_of(id)).collect();
        let unused: Vec<_> = slots().into_iter().filter(|slot| !used.contains(slot)).collect();
        if unused.len() != READY_SLOTS {
            leaks.push(format!("{unused:?} are nobody's networks, and {READY_SLOTS} are kept ready"));
        }
        let drafts = names(&Path::new(STATE_DIR).join("warm")).into_iter().filter(|name| name.starts_with('.'));
        leaks.extend(drafts.map(|draft| format!("the warm snapshot {draft} is being made")));
        for cgroup in cgroups() {
            if fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty()) {
                leaks.push(format!("{} has no process", cgroup.display()));
            }
        }
        Ok(leaks)
    }

    /// The monitors that the records name, running or not.
    fn recorded(&self) -> HashSet<Pid> {
        let ids = names(&Path::new(STATE_DIR).join("sandboxes"));
        ids.into_iter().filter_map(|id| pid_in(&self.record(&id)?)).collect()
    }
}

impl Traces {
    /// Panics unless nothing of the sandbox is left: files at once, the process and its cgroup before long.
    pub async fn are_gone(&self) {
        let files = Host::shared().files_of(&self.id);
        assert_eq!(files, Vec::<PathBuf>::new(), "files of {} are left", self.id);
        self.process_is_gone().await;
    }

    /// Panics unless the process, its cgroup and its network are gone before long.
    pub async fn process_is_gone(&self) {
        wait_until(&format!("process, cgroup and network of {} are gone", self.id), || async {
            let lives = self.monitor.filter(|pid| is_among(&processes(), *pid));
            let cgroups: Vec<_> = self.cgroups.iter().filter(|path| path.exists()).collect();
            let slot = self.slot.as_ref().filter(|slot| slots().contains(slot));
            let is_gone = lives.is_none() && cgroups.is_empty() && slot.is_none();
            let left = || format!("left: process {lives:?}, cgroups {cgroups:?}, network {slot:?}");
            if is_gone { Ok(()) } else { Err(left()) }
        })
        .await;
    }
}

/// The monitor that a record names.
pub(crate) fn pid_in(record: &Value) -> Option<Pid> {
    let pid = record["process"]["identity"]["pid"].as_i64()?;
    Some(Pid::from_raw(pid.try_into().ok()?))
}

fn is_among(running: &[Process], pid: Pid) -> bool {
    running.iter().any(|process| process.pid == pid)
}

/// The shared host's monitors.
fn processes() -> Vec<Process> {
    let marker = format!("{MARKER}{STATE_DIR}/monitors/");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment);
        let id = environment.split('\0').find_map(|variable| variable.strip_prefix(&marker))?;
        Some(Process { pid: Pid::from_raw(pid), id: id.to_owned() })
    };
    entries.filter_map(|entry| process(entry.ok()?)).collect()
}

/// The cgroup folders of monitors: of one tree, or of several where the host still has version 1.
pub(crate) fn cgroups() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let trees = below(&root).into_iter().chain([root]);
    let is_an_agents =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sandpiper-"));
    let agents = trees.flat_map(|tree| below(&tree)).filter(is_an_agents);
    agents.flat_map(|agent| below(&agent)).filter(|path| path.is_dir()).collect()
}

/// The network namespaces of the shared host.
fn slots() -> Vec<String> {
    let prefix = format!("{NETWORK}-");
    names(Path::new("/run/netns")).into_iter().filter(|name| name.starts_with(&prefix)).collect()
}

/// What is in a folder, if it is one.
fn below(folder: &Path) -> Vec<PathBuf> {
    names(folder).into_iter().map(|name| folder.join(name)).collect()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
