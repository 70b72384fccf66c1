//! Where the agent keeps what it keeps.
//!
//! ```text
//! <state_dir>/                       0700, survives a reboot
//!   agent.lock                       held (flock) by the one agent of this folder
//!   record.key                       seals the environment variables inside the records
//!   session.key                      signs data-plane access tokens
//!   session.revoked                  API keys whose tokens open nothing
//!   allowances.json                  what teams may hold here
//!   templates/<ver…>/                root.ext4, template.json
//!   sandboxes/<sbx…>/                record.json, record.copy.json, record.next.json, draft.json, the files that the record names
//!                                    (disk-…, memory-…, state-…), exit.json, monitor.log, console.log, samples-<n>, log-<sequence>
//!   checkpoints/<ckp…>/              manifest.json, and the files that it names
//!   warm/<key>/                      the same of a template's warm snapshot
//!   builds/<ver…>/                   build.json, log: of each build that goes on or ended not long ago
//!   caches/                          what builds can use again: a layer for each team
//!   uploads/<upl…>/                  upload.json, data: what was sent for builds
//!   volumes/<vol…>/                  volume.json, base.layer, data.layer; and blank layers, which they share
//!   helpers/<vol…>/, <ver…>/         as for a sandbox, of a machine of the agent's own that works with a volume, or builds
//!   intervals/                       the journal of when machines ran
//!   monitors/<mon…>/                 of a monitor that waits for a machine: exit.json, monitor.log
//! <runtime_dir>/                     0755, may be a tmpfs
//!   agent.sock                       the agent API
//!   sandboxes/<sbx…>/                0700: control.sock, vsock.sock
//!   monitors/<mon…>/                 0700: control.sock
//!   warm/<key>/                      0700: while a warm snapshot is made, as for a sandbox
//!   helpers/<vol…>/                  0700: the same of a helper
//!   network/<slot>                   what the proxy of a network slot passed on; sandpiper-network's
//! ```
//!
//! All of `state_dir` is one file system: layers are hard links between these folders.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sandpiper_machine::MachinePaths;

/// What the folders of idle monitors were called.
const SHELLS: &str = "shells";

/// The two roots, and the names below them.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    state: PathBuf,
    runtime: PathBuf,
}

impl Paths {
    pub(crate) fn new(state: &Path, runtime: &Path) -> Self {
        Self { state: state.to_owned(), runtime: runtime.to_owned() }
    }

    /// Makes the folders that are always there.
    pub(crate) fn create(&self) -> io::Result<()> {
        create_dir(&self.state, 0o700)?;
        create_dir(&self.sandboxes(), 0o700)?;
        create_dir(&self.templates(), 0o700)?;
        create_dir(&self.checkpoints(), 0o700)?;
        create_dir(&self.warm(), 0o700)?;
        create_dir(&self.builds(), 0o700)?;
        create_dir(&self.caches(), 0o700)?;
        create_dir(&self.uploads(), 0o700)?;
        create_dir(&self.volumes(), 0o700)?;
        create_dir(&self.helpers(), 0o700)?;
        create_dir(&self.monitors(), 0o700)?;
        create_dir(&self.intervals(), 0o700)?;
        create_dir(&self.runtime, 0o755)?;
        create_dir(&self.runtime_sandboxes(), 0o700)?;
        create_dir(&self.runtime_monitors(), 0o700)?;
        create_dir(&self.runtime_warm(), 0o700)?;
        create_dir(&self.runtime_helpers(), 0o700)
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.state.join("agent.lock")
    }

    pub(crate) fn record_key(&self) -> PathBuf {
        self.state.join("record.key")
    }

    pub(crate) fn session_key(&self) -> PathBuf {
        self.state.join("session.key")
    }

    pub(crate) fn allowances(&self) -> PathBuf {
        self.state.join("allowances.json")
    }

    pub(crate) fn templates(&self) -> PathBuf {
        self.state.join("templates")
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(crate) fn runtime_sandboxes(&self) -> PathBuf {
        self.runtime.join("sandboxes")
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.state.join("checkpoints")
    }

    pub(crate) fn warm(&self) -> PathBuf {
        self.state.join("warm")
    }

    pub(crate) fn runtime_warm(&self) -> PathBuf {
        self.runtime.join("warm")
    }

    pub(crate) fn builds(&self) -> PathBuf {
        self.state.join("builds")
    }

    pub(crate) fn caches(&self) -> PathBuf {
        self.state.join("caches")
    }

    pub(crate) fn uploads(&self) -> PathBuf {
        self.state.join("uploads")
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.state.join("volumes")
    }

    pub(crate) fn helpers(&self) -> PathBuf {
        self.state.join("helpers")
    }

    pub(crate) fn runtime_helpers(&self) -> PathBuf {
        self.runtime.join("helpers")
    }

    /// The folders of one helper: named after its volume, its build, or what it is for.
    pub(crate) fn helper(&self, name: &str) -> MachinePaths {
        MachinePaths { state: self.helpers().join(name), runtime: self.runtime_helpers().join(name) }
    }

    pub(crate) fn intervals(&self) -> PathBuf {
        self.state.join("intervals")
    }

    pub(crate) fn monitors(&self) -> PathBuf {
        self.state.join("monitors")
    }

    pub(crate) fn runtime_monitors(&self) -> PathBuf {
        self.runtime.join("monitors")
    }

    /// Folders in which monitors of an earlier agent may have been idle: its own, and those of agents that called an idle
    /// monitor a shell. A monitor names its folder for as long as it runs.
    pub(crate) fn monitors_ever(&self) -> [PathBuf; 2] {
        [self.monitors(), self.state.join(SHELLS)]
    }

    /// What only agents made that called an idle monitor a shell.
    pub(crate) fn outdated(&self) -> [PathBuf; 2] {
        [self.state.join(SHELLS), self.runtime.join(SHELLS)]
    }

    pub(crate) fn api_socket(&self) -> PathBuf {
        self.runtime.join("agent.sock")
    }

    /// The folders of one sandbox. `id` has been checked: it becomes a folder's name.
    pub(crate) fn sandbox(&self, id: &str) -> MachinePaths {
        MachinePaths { state: self.sandboxes().join(id), runtime: self.runtime_sandboxes().join(id) }
    }

    /// The folders of one monitor while it is idle.
    pub(crate) fn monitor(&self, id: &str) -> MachinePaths {
        MachinePaths { state: self.monitors().join(id), runtime: self.runtime_monitors().join(id) }
    }
}

/// Makes a folder and its parents; content when it exists.
pub(crate) fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}
