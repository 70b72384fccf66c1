//! Running `nft`, which makes rules and never hangs: it speaks with the kernel only.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// In milliseconds. A ruleset of hundreds of thousands of elements takes seconds, and ours have thousands.
const TIME_LIMIT: u16 = 20_000;
/// Most that is read of what it prints.
const MAX_OUTPUT: u64 = 16 * 1024 * 1024;

/// Why `nft` did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("Cannot run `nft`; is the package `nftables` installed?")]
    Run(#[source] io::Error),
    #[error("`nft` did not end within {} seconds", TIME_LIMIT / 1000)]
    TimedOut,
    #[error("`nft` refused: {0}")]
    Refused(String),
}

/// Loads a ruleset in the namespace that the calling thread is in: all of it or, with an error, nothing. Blocks.
pub(crate) fn load(ruleset: &str) -> Result<(), NftError> {
    run(&["-f", "-"], ruleset).map(drop)
}

/// Runs `nft` and returns what it printed. Input and outputs are files in memory, so that neither side waits for the other.
pub(crate) fn run(arguments: &[&str], input: &str) -> Result<Vec<u8>, NftError> {
    let attempt = || -> io::Result<_> {
        let (mut stdin, stdout, stderr) = (memory()?, memory()?, memory()?);
        stdin.write_all(input.as_bytes())?;
        stdin.rewind()?;
        let mut command = Command::new("nft");
        command.args(arguments).stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        Ok((end_of(command.spawn()?)?, contents(stdout)?, contents(stderr)?))
    };
    let (status, stdout, stderr) = attempt().map_err(NftError::Run)?;
    match status {
        Some(status) if status.success() => Ok(stdout),
        Some(status) => {
            let message = String::from_utf8_lossy(&stderr);
            let first = message.lines().next().unwrap_or("no reason given");
            Err(NftError::Refused(format!("{first} ({status})")))
        }
        None => Err(NftError::TimedOut),
    }
}

fn memory() -> io::Result<File> {
    Ok(memfd_create(c"nft", MFdFlags::MFD_CLOEXEC)?.into())
}

/// A copy of a descriptor shares its position, so what a process wrote is read from the beginning.
fn contents(mut file: File) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    file.rewind()?;
    file.take(MAX_OUTPUT).read_to_end(&mut contents)?;
    Ok(contents)
}

/// Waits for the end of a process; `None` if it had to be killed.
fn end_of(mut child: Child) -> io::Result<Option<ExitStatus>> {
    let ended = pidfd_open(&child).and_then(|pidfd| {
        loop {
            match poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], TIME_LIMIT) {
                Err(Errno::EINTR) => {}
                result => return result,
            }
        }
    });
    if !matches!(ended, Ok(1)) {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok((ended? == 1).then_some(status))
}

fn pidfd_open(child: &Child) -> Result<OwnedFd, Errno> {
    let pid = child.id().cast_signed();
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_ruleset_is_told_in_one_line() {
        let error = run(&["-c", "-f", "-"], "table inet t { chain c { nonsense } }\n").unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("`nft` refused: ") && message.contains("syntax error"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }

    #[test]
    fn a_process_that_hangs_on_its_outputs_does_not_hang_us() {
        // More than a pipe takes, both ways.
        let comments = "# a comment\n".repeat(100_000);
        assert!(run(&["-c", "-f", "-"], &comments).unwrap().is_empty());
    }
}
