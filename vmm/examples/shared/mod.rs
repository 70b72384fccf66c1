//! A monitor as the examples start it: the real binary, its control socket and its exit record.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen, socket,
};
use sandpiper_protocol::vmm::{self, ExitRecord};

pub(crate) struct Monitor {
    child: Child,
    control: OwnedFd,
    exit: File,
}

impl Monitor {
    /// Starts `program`, or the `sandpiper-vmm` beside this program's folder.
    pub(crate) fn start(program: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let beside = || Ok::<PathBuf, std::io::Error>(std::env::current_exe()?.with_file_name("../sandpiper-vmm"));
        let program = program.map_or_else(beside, |path| Ok(path.to_owned()))?;
        let exit = File::from(memfd_create(c"exit record", MFdFlags::empty())?);
        let new = || socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
        let (listener, control) = (new()?, new()?);
        // An unnamed address has the kernel choose an abstract one.
        bind(listener.as_raw_fd(), &UnixAddr::new_unnamed())?;
        listen(&listener, Backlog::new(4)?)?;
        let address: UnixAddr = getsockname(listener.as_raw_fd())?;
        connect(control.as_raw_fd(), &address)?;
        for fd in [listener.as_fd(), exit.as_fd()] {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let child = Command::new(&program)
            .args(["--control-fd", &listener.as_raw_fd().to_string(), "--exit-fd", &exit.as_raw_fd().to_string()])
            .args(["--name", "example"])
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Self { child, control, exit })
    }

    pub(crate) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Result<(ExitRecord, ExitStatus), Box<dyn Error>> {
        let status = self.child.wait()?;
        let mut record = String::new();
        self.exit.rewind()?;
        self.exit.read_to_string(&mut record)?;
        Ok((serde_json::from_str(&record)?, status))
    }
}

/// Where the guest's vsock ports would be reached; it has no path.
pub(crate) fn vsock() -> Result<UnixListener, Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("sandpiper-example-{}.vsock", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    std::fs::remove_file(&path)?;
    Ok(listener)
}

/// A packet of the monitor and the descriptors in it.
type Packet = (vmm::MonitorMessage, Vec<OwnedFd>);

/// The next packet of the monitor, `None` once it closed.
pub(crate) fn receive(monitor: &Monitor) -> Result<Option<Packet>, Box<dyn Error>> {
    let Some(packet) = vmm::receive(monitor.control())? else { return Ok(None) };
    Ok(Some((serde_json::from_slice(&packet.bytes)?, packet.fds)))
}
