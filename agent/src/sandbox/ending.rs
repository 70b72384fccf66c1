//! Why a machine ended by itself, in words for its owner; and how what it leaves is taken away.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use nix::sys::signal::Signal;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_machine::process::Ended;
use sandpiper_machine::{MachinePaths, sanitize};
use sandpiper_protocol::agent::SandboxError;
use sandpiper_protocol::vmm::{ExitReason, ExitRecord};

use super::record_file;
use crate::logs;

/// Most bytes of an exit record: a packet's worth.
const MAX_EXIT_RECORD: u64 = 64 * 1024;
/// How much of the end of a monitor's log goes into an error.
const LOG_TAIL: u64 = 1024;

/// What the monitor of `paths` said about its end, or what can be said without it. Blocks.
pub(crate) fn explain(paths: &MachinePaths, ended: &Ended) -> SandboxError {
    match read_exit_record(&paths.exit_record()) {
        Some(record) => from_exit_record(&record),
        None => without_record(ended, &log_tail(&paths.monitor_log())),
    }
}

/// What ended the machine of `paths`, whose monitor is gone, unless that was asked to stop. Blocks.
pub(crate) fn by_itself(paths: &MachinePaths) -> Option<SandboxError> {
    match read_exit_record(&paths.exit_record()) {
        Some(record) if record.reason == ExitReason::Stopped => None,
        _ => Some(explain(paths, &Ended::Unknown)),
    }
}

/// The error of a machine whose host was started anew.
pub(crate) fn host_restarted() -> SandboxError {
    error("host_restarted", "The host was restarted while the sandbox ran".into())
}

/// The error of a monitor that lives but cannot be talked to.
pub(crate) fn out_of_control() -> SandboxError {
    error("monitor_failed", "The monitor did not respond any more and was killed".into())
}

/// The error of a guest that says that it cannot be used.
pub(crate) fn guest_failed(message: &str) -> SandboxError {
    error("guest_failed", format!("The guest reported: {}", sanitize(message)))
}

pub(crate) fn error(code: &str, message: String) -> SandboxError {
    SandboxError { code: code.to_owned(), message }
}

fn from_exit_record(record: &ExitRecord) -> SandboxError {
    let detail = sanitize(&record.message);
    let (code, what) = match record.reason {
        ExitReason::GuestPoweredOff => ("guest_powered_off", "The guest powered itself off"),
        ExitReason::GuestReset => ("guest_reset", "The guest reset itself"),
        ExitReason::GuestPanicked => ("guest_panicked", "The guest's kernel panicked"),
        ExitReason::Failed => ("monitor_failed", "The monitor failed"),
        ExitReason::Stopped => ("monitor_failed", "The monitor was stopped by somebody else"),
    };
    // The monitor's own words where it has more to say than the reason alone.
    let message = match detail.trim_end_matches('.') {
        "" => what.to_owned(),
        detail if detail.starts_with(what) => detail.to_owned(),
        detail => format!("{what}: {detail}"),
    };
    error(code, message)
}

fn without_record(ended: &Ended, log: &str) -> SandboxError {
    if *ended == Ended::Signaled(Signal::SIGSYS) {
        let message = "The monitor made a system call that it may not make, and was killed".to_owned();
        return error("forbidden_system_call", message);
    }
    let mut message = match ended {
        Ended::Signaled(signal) => format!("The monitor was ended by {signal}"),
        Ended::Exited(status) => format!("The monitor exited with status {status} and left no exit record"),
        Ended::Unknown => "The monitor ended without an exit record: it was killed or crashed".to_owned(),
    };
    if !log.is_empty() {
        message.push_str("; last in its log: ");
        message.push_str(log);
    }
    error("monitor_failed", message)
}

fn read_exit_record(path: &Path) -> Option<ExitRecord> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_EXIT_RECORD).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    sanitize(&text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | "))
}

/// Removes what belongs to a process, of a sandbox whose monitor is gone and whose disk and memory stay. Blocks.
pub(crate) fn remove_process_files(paths: &MachinePaths) -> io::Result<()> {
    durable::remove_tree(&paths.runtime)?;
    [paths.exit_record(), paths.monitor_log(), paths.console_log()]
        .iter()
        .try_for_each(|path| durable::remove_file(path))
}

/// Removes everything of a sandbox whose monitor is gone, but its record and its log. Blocks.
pub(crate) fn free(paths: &MachinePaths) -> io::Result<()> {
    durable::remove_tree(&paths.runtime)?;
    let kept = [record_file::draft_path(paths), record_file::record_path(paths), record_file::copy_path(paths)];
    for entry in fs::read_dir(&paths.state)? {
        let path = entry?.path();
        let is_of_log = path.file_name().and_then(OsStr::to_str).is_some_and(logs::is_segment);
        if !is_of_log && !kept.contains(&path) {
            durable::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Removes everything of a sandbox whose monitor is gone. Blocks.
pub(crate) fn remove(paths: &MachinePaths) -> io::Result<()> {
    durable::remove_tree(&paths.runtime)?;
    CrashPoint::DeleteSocketsRemoved.pass();
    // Should this be interrupted after the record is gone, the next agent finds a folder without one and removes it.
    durable::remove_tree(&paths.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(folder: &Path) -> MachinePaths {
        let paths = MachinePaths { state: folder.join("state"), runtime: folder.join("runtime") };
        fs::create_dir(&paths.state).unwrap();
        fs::create_dir(&paths.runtime).unwrap();
        paths
    }

    #[test]
    fn the_exit_record_tells_why() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        fs::write(paths.exit_record(), r#"{"reason":"guest_panicked","message":"at \u001b[1mpid 1"}"#).unwrap();

        let error = explain(&paths, &Ended::Exited(0));

        assert_eq!(error.code, "guest_panicked");
        assert_eq!(error.message, "The guest's kernel panicked: at \u{fffd}[1mpid 1");
    }

    #[test]
    fn a_killed_monitor_is_reported_with_signal_and_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        fs::write(paths.exit_record(), b"").unwrap();
        fs::write(paths.monitor_log(), b"first\n\nCannot create the VM\n").unwrap();

        let error = explain(&paths, &Ended::Signaled(Signal::SIGKILL));

        assert_eq!(error.code, "monitor_failed");
        assert_eq!(error.message, "The monitor was ended by SIGKILL; last in its log: first | Cannot create the VM");
    }

    #[test]
    fn a_monitor_that_left_its_bounds_is_told_from_one_that_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let error = explain(&paths(folder.path()), &Ended::Signaled(Signal::SIGSYS));
        assert_eq!(error.code, "forbidden_system_call");
    }

    #[test]
    fn a_stopped_sandbox_keeps_disk_memory_and_record() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        for path in
            [record_file::record_path(&paths), paths.file("disk-1.layer"), paths.exit_record(), paths.vsock_socket()]
        {
            fs::write(path, b"").unwrap();
        }

        remove_process_files(&paths).unwrap();

        assert!(record_file::record_path(&paths).exists() && paths.file("disk-1.layer").exists());
        assert!(!paths.exit_record().exists() && !paths.runtime.exists());
    }

    #[test]
    fn what_a_failed_sandbox_leaves_is_its_record() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        fs::write(record_file::record_path(&paths), b"{}").unwrap();
        fs::write(paths.file("disk-1.layer"), b"data").unwrap();
        fs::write(paths.vsock_socket(), b"").unwrap();

        free(&paths).unwrap();

        assert_eq!(fs::read_dir(&paths.state).unwrap().count(), 1);
        assert!(record_file::record_path(&paths).exists() && !paths.runtime.exists());
        remove(&paths).unwrap();
        remove(&paths).unwrap();
        assert!(!paths.state.exists());
    }
}
