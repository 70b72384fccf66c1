//! The files of a machine that have a path.

use std::path::PathBuf;
use std::{fs, io};

use sandpiper_durable as durable;

/// The folders of one machine, or of a monitor that will become one.
#[derive(Debug, Clone)]
pub struct MachinePaths {
    pub state: PathBuf,
    pub runtime: PathBuf,
}

impl MachinePaths {
    /// Makes the folders those of another machine, which has none. Blocks.
    ///
    /// # Errors
    /// Of the file system; one of them may have been renamed.
    pub fn rename(&self, to: &Self) -> io::Result<()> {
        fs::rename(&self.runtime, &to.runtime)?;
        fs::rename(&self.state, &to.state)
    }

    /// Removes both folders of a machine that has ended; content without them. Blocks.
    ///
    /// # Errors
    /// Of the file system.
    pub fn remove(&self) -> io::Result<()> {
        durable::remove_tree(&self.runtime)?;
        durable::remove_tree(&self.state)
    }

    /// One of its layers, or another file of its own.
    pub fn file(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// Where the monitor writes why it ended.
    pub fn exit_record(&self) -> PathBuf {
        self.state.join("exit.json")
    }

    /// The monitor's standard error.
    pub fn monitor_log(&self) -> PathBuf {
        self.state.join("monitor.log")
    }

    /// The guest's serial port.
    pub fn console_log(&self) -> PathBuf {
        self.state.join("console.log")
    }

    pub fn control_socket(&self) -> PathBuf {
        self.runtime.join("control.sock")
    }

    pub fn vsock_socket(&self) -> PathBuf {
        self.runtime.join("vsock.sock")
    }
}
