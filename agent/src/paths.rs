//! Where the agent keeps what it keeps.
//!
//! ```text
//! <state_dir>/                       0700, survives a reboot
//!   agent.lock                       held (flock) by the one agent of this folder
//!   record.key                       seals the environment variables inside the records
//!   session.key                      signs data-plane access tokens
//!   templates/<ver…>/                root.ext4, template.json
//!   sandboxes/<sbx…>/                record.json, root.layer, exit.json, monitor.log, console.log
//! <runtime_dir>/                     0755, may be a tmpfs
//!   agent.sock                       the agent API
//!   sandboxes/<sbx…>/                0700: control.sock, vsock.sock
//! ```

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

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
        create_dir(&self.runtime, 0o755)?;
        create_dir(&self.runtime_sandboxes(), 0o700)
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

    pub(crate) fn templates(&self) -> PathBuf {
        self.state.join("templates")
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(crate) fn runtime_sandboxes(&self) -> PathBuf {
        self.runtime.join("sandboxes")
    }

    pub(crate) fn api_socket(&self) -> PathBuf {
        self.runtime.join("agent.sock")
    }

    /// The folders of one sandbox. `id` has been checked: it becomes a folder's name.
    pub(crate) fn sandbox(&self, id: &str) -> SandboxPaths {
        SandboxPaths { state: self.sandboxes().join(id), runtime: self.runtime_sandboxes().join(id) }
    }
}

/// The folders of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxPaths {
    pub(crate) state: PathBuf,
    pub(crate) runtime: PathBuf,
}

impl SandboxPaths {
    pub(crate) fn record(&self) -> PathBuf {
        self.state.join("record.json")
    }

    /// Top layer of the root disk.
    pub(crate) fn root_layer(&self) -> PathBuf {
        self.state.join("root.layer")
    }

    /// Where the monitor writes why it ended.
    pub(crate) fn exit_record(&self) -> PathBuf {
        self.state.join("exit.json")
    }

    /// The monitor's standard error.
    pub(crate) fn monitor_log(&self) -> PathBuf {
        self.state.join("monitor.log")
    }

    /// The guest's serial port.
    pub(crate) fn console_log(&self) -> PathBuf {
        self.state.join("console.log")
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.runtime.join("control.sock")
    }

    pub(crate) fn vsock_socket(&self) -> PathBuf {
        self.runtime.join("vsock.sock")
    }
}

/// Makes a folder and its parents; content when it exists.
pub(crate) fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}
