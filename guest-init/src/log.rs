//! What PID 1 has to say: to the console, and over the link to the host.

use std::io::Write;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use sandpiper_protocol::guest::{GuestMessage, LogLevel};
use tokio::sync::mpsc;

/// Lines kept for the host while the link is down; later ones are dropped.
const BACKLOG: usize = 64;

/// Longest message, so that a line with every character escaped stays under the link's limit.
const MAX_MESSAGE: usize = 8 * 1024;

/// Where messages go in. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    to_host: mpsc::Sender<GuestMessage>,
}

/// A log, and the end that the link sends from.
pub(crate) fn channel() -> (Log, mpsc::Receiver<GuestMessage>) {
    let (to_host, from_log) = mpsc::channel(BACKLOG);
    (Log { to_host }, from_log)
}

impl Log {
    pub(crate) fn info(&self, message: impl Into<String>) {
        self.write(LogLevel::Info, message.into());
    }

    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.write(LogLevel::Warn, message.into());
    }

    pub(crate) fn error(&self, message: impl Into<String>) {
        self.write(LogLevel::Error, message.into());
    }

    fn write(&self, level: LogLevel, mut message: String) {
        truncate(&mut message);
        // Without a console there is nobody to tell that there is none.
        let _ = writeln!(std::io::stderr(), "sandpiper-init: {message}");
        let _ = self.to_host.try_send(GuestMessage::Log { level, message });
    }
}

/// Lets writing to the console fail rather than wait, for the rest of this process's life: a serial port that takes nothing
/// must not stop PID 1. The processes that it starts do not share its standard streams.
pub(crate) fn never_block() {
    // If it cannot be asked for, the console is closed or nothing that could block.
    let Ok(flags) = fcntl(std::io::stderr(), FcntlArg::F_GETFL) else { return };
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    let _ = fcntl(std::io::stderr(), FcntlArg::F_SETFL(flags));
}

/// Cuts a message at [`MAX_MESSAGE`] bytes or a little before, between two characters.
pub(crate) fn truncate(message: &mut String) {
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    }
}
