//! Ending the machine: the signals that PID 1 takes for it, and the commands that send them.
//!
//! | command | signal | then |
//! |---|---|---|
//! | `poweroff`, `halt`, `shutdown` | SIGTERM (also SIGUSR1, SIGUSR2, SIGPWR) | the machine is switched off |
//! | `reboot` | SIGINT (also the kernel's, for Ctrl-Alt-Del) | the machine is reset |

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use crate::log::Log;

/// Linux's SIGPWR, on every architecture that is built for.
const SIGPWR: i32 = 30;

/// What processes get to finish in between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// How often to look whether they have finished.
const POLL: Duration = Duration::from_millis(20);

/// What to do with the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    PowerOff,
    Reboot,
}

impl Request {
    /// What the name that this program was started under asks for.
    pub fn from_program_name() -> Option<Self> {
        let program = std::env::args_os().next()?;
        Self::from_name(std::path::Path::new(&program).file_name()?.to_str()?)
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "poweroff" | "halt" | "shutdown" => Some(Self::PowerOff),
            "reboot" => Some(Self::Reboot),
            _ => None,
        }
    }

    /// Asks PID 1 for it.
    pub fn send(self) -> ExitCode {
        let signal = match self {
            Self::PowerOff => Signal::SIGTERM,
            Self::Reboot => Signal::SIGINT,
        };
        match kill(Pid::from_raw(1), signal) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("The machine cannot be stopped: {error}. Try again as root (sudo).");
                ExitCode::FAILURE
            }
        }
    }
}

/// Takes the signals from now on.
pub(crate) fn start(log: Log) -> io::Result<()> {
    // The kernel then sends SIGINT for Ctrl-Alt-Del instead of resetting at once. Fails only where it is not PID 1's to say.
    let _ = nix::sys::reboot::set_cad_enabled(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut user1 = signal(SignalKind::user_defined1())?;
    let mut user2 = signal(SignalKind::user_defined2())?;
    let mut power = signal(SignalKind::from_raw(SIGPWR))?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let request = tokio::select! {
            _ = terminate.recv() => Request::PowerOff,
            _ = user1.recv() => Request::PowerOff,
            _ = user2.recv() => Request::PowerOff,
            _ = power.recv() => Request::PowerOff,
            _ = interrupt.recv() => Request::Reboot,
        };
        stop(request, &log).await;
    });
    Ok(())
}

async fn stop(request: Request, log: &Log) {
    log.info(match request {
        Request::PowerOff => "The guest switches itself off",
        Request::Reboot => "The guest reboots",
    });
    // -1 is every process but this one.
    let everyone = Pid::from_raw(-1);
    let _ = kill(everyone, Signal::SIGTERM);
    let deadline = tokio::time::Instant::now() + GRACE;
    while crate::reap::has_children() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(POLL).await;
    }
    let _ = kill(everyone, Signal::SIGKILL);
    // On a thread of its own: what is left to write may take long, and the link should carry the line above meanwhile.
    let ended = tokio::task::spawn_blocking(move || end(request)).await;
    if let Ok(error) = ended {
        log.error(format!("The machine cannot be stopped: {error}"));
    }
}

/// Writes everything to disk and ends the machine; returns only if the kernel refuses.
fn end(request: Request) -> io::Error {
    nix::unistd::sync();
    // Fails while a file is open for writing; the file system has been synced, and its journal covers the rest.
    let _ = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>);
    let mode = match request {
        Request::PowerOff => RebootMode::RB_POWER_OFF,
        Request::Reboot => RebootMode::RB_AUTOBOOT,
    };
    match reboot(mode) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_the_power_commands_mean_something() {
        assert_eq!(Request::from_name("poweroff"), Some(Request::PowerOff));
        assert_eq!(Request::from_name("halt"), Some(Request::PowerOff));
        assert_eq!(Request::from_name("reboot"), Some(Request::Reboot));
        assert_eq!(Request::from_name("sandpiper-init"), None);
    }
}
