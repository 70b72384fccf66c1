//! `sandpiper-vmm`: see [`sandpiper_vmm`].

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;

use kvm_ioctls::Kvm;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::vmm::ExitReason;
use sandpiper_vmm::jail;
use sandpiper_vmm::machine::clock::monotonic_us;
use sandpiper_vmm::memory::tracker::Tracker;
use sandpiper_vmm::process::{self, Options};

const HELP: &str = "\
Runs one microVM. Started by sandpiper-agent, not by people.

Usage: sandpiper-vmm --control-fd N --exit-fd M [--kvm-fd K] [--jail UID] [--name TEXT]

  --control-fd N  a listening SOCK_SEQPACKET Unix socket, on which the machine is asked for
  --exit-fd M     a file that gets the exit record, one JSON object
  --kvm-fd K      /dev/kvm, open; without it the monitor opens it itself
  --jail UID      first gives up all but these descriptors and becomes this user, 1000 or above, which should be
                  nobody else's. Takes root, and a PID namespace if it is to see no other process
  --name TEXT     shown in the list of processes, without other effect
  --help, --version

Exit status: 0 when the guest ended or was stopped, 1 when something failed, 2 when it was started wrongly.
";

/// The command line is wrong.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("unknown argument {0:?}; see --help")]
    Unknown(String),
    #[error("{0} needs a value")]
    NoValue(&'static str),
    #[error("{option} needs the number of an open descriptor, not {value:?}")]
    NotADescriptor { option: &'static str, value: String },
    #[error("--jail needs the number of a user, not {0:?}")]
    NotAUser(String),
    #[error("{0} is missing; see --help")]
    Missing(&'static str),
    #[error("one descriptor is named twice")]
    Twice,
}

#[derive(Default)]
struct Arguments {
    control: Option<RawFd>,
    exit: Option<RawFd>,
    kvm: Option<RawFd>,
    jail: Option<u32>,
}

enum Invocation {
    Run(Arguments),
    Print(&'static str),
}

fn main() -> ExitCode {
    let process_start_us = monotonic_us();
    match parse(std::env::args().skip(1)) {
        Ok(Invocation::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Invocation::Run(arguments)) => run(&arguments, process_start_us).unwrap_or_else(|error| {
            eprintln!("sandpiper-vmm: {}", error_chain::chain(&*error));
            ExitCode::from(2)
        }),
        Err(error) => {
            eprintln!("sandpiper-vmm: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments, process_start_us: u64) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let control = arguments.control.ok_or(UsageError::Missing("--control-fd"))?;
    let exit = arguments.exit.ok_or(UsageError::Missing("--exit-fd"))?;
    if control == exit || arguments.kvm.is_some_and(|kvm| kvm == control || kvm == exit) {
        return Err(UsageError::Twice.into());
    }
    let kvm = match arguments.kvm {
        // SAFETY: `parse` found it open, it differs from the others, and nothing else in this process uses it: it was
        // passed to us for this.
        Some(fd) => unsafe { Kvm::from_raw_fd(fd) },
        None => Kvm::new().map_err(|error| format!("Cannot open /dev/kvm: {error}"))?,
    };
    if kvm.get_api_version() != 12 {
        return Err("The descriptor for KVM is not /dev/kvm, or its version is not 12".into());
    }
    // SAFETY: as above.
    let control = unsafe { OwnedFd::from_raw_fd(control) };
    // SAFETY: as above.
    let exit = unsafe { File::from_raw_fd(exit) };
    // Opened here because there is no /proc in a jail.
    let pagemap = File::open("/proc/self/pagemap").ok();
    let tracker = Tracker::open().ok();
    if let Some(uid) = arguments.jail {
        let mut keep = vec![control.as_raw_fd(), exit.as_raw_fd(), kvm.as_raw_fd()];
        keep.extend(pagemap.as_ref().map(AsRawFd::as_raw_fd));
        keep.extend(tracker.as_ref().map(AsRawFd::as_raw_fd));
        jail::enter(uid, &keep)?;
    }
    let record = process::run(Options { control, exit, kvm, pagemap, tracker, process_start_us });
    Ok(if record.reason == ExitReason::Failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Invocation, UsageError> {
    let mut parsed = Arguments::default();
    while let Some(argument) = arguments.next() {
        let mut descriptor = |option| descriptor(option, arguments.next());
        match argument.as_str() {
            "--control-fd" => parsed.control = Some(descriptor("--control-fd")?),
            "--exit-fd" => parsed.exit = Some(descriptor("--exit-fd")?),
            "--kvm-fd" => parsed.kvm = Some(descriptor("--kvm-fd")?),
            "--jail" => {
                let uid = arguments.next().ok_or(UsageError::NoValue("--jail"))?;
                parsed.jail = Some(uid.parse().map_err(|_| UsageError::NotAUser(uid))?);
            }
            "--name" => {
                arguments.next().ok_or(UsageError::NoValue("--name"))?;
            }
            "--help" => return Ok(Invocation::Print(HELP)),
            "--version" => return Ok(Invocation::Print(concat!("sandpiper-vmm ", env!("CARGO_PKG_VERSION"), "\n"))),
            _ => return Err(UsageError::Unknown(argument)),
        }
    }
    Ok(Invocation::Run(parsed))
}

/// An open descriptor beyond the standard three.
fn descriptor(option: &'static str, value: Option<String>) -> Result<RawFd, UsageError> {
    let value = value.ok_or(UsageError::NoValue(option))?;
    match value.parse() {
        // SAFETY: F_GETFD only asks about the descriptor; for one that is not open it fails.
        Ok(fd) if fd > libc::STDERR_FILENO && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0 => Ok(fd),
        _ => Err(UsageError::NotADescriptor { option, value }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Invocation, UsageError> {
        super::parse(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn descriptors_must_be_open_and_not_standard_ones() {
        assert!(matches!(parse(&["--control-fd", "1"]), Err(UsageError::NotADescriptor { .. })));
        assert!(matches!(parse(&["--exit-fd", "99999"]), Err(UsageError::NotADescriptor { .. })));
        assert!(matches!(parse(&["--kvm-fd", "x"]), Err(UsageError::NotADescriptor { .. })));
        assert!(matches!(parse(&["--kvm-fd"]), Err(UsageError::NoValue("--kvm-fd"))));
        assert!(matches!(parse(&["--name"]), Err(UsageError::NoValue("--name"))));
        assert!(matches!(parse(&["--jail", "user"]), Err(UsageError::NotAUser(_))));
        assert!(matches!(parse(&["--verbose"]), Err(UsageError::Unknown(_))));
        assert!(
            matches!(parse(&["--name", "x", "--version"]), Ok(Invocation::Print(text)) if text.starts_with("sandpiper-vmm"))
        );
    }
}
