//! Boots a kernel with the monitor, for its developers: console on standard output, times at the end.
//!
//! ```sh
//! cargo build -p sandpiper-vmm --example boot
//! target/debug/examples/boot --kernel vmlinux [--disk root.ext4]... [--memory MIB] [--vcpus N] [--args 'KERNEL ARGUMENTS']
//!     [--quiet] [--monitor PATH] [--stop-at-init]
//! ```
//!
//! It does what the agent does: starts `sandpiper-vmm` (beside this program's folder unless `--monitor` names another),
//! hands it the files over the control socket, and reads the exit record. Each disk is written to directly, so use a copy.
//! `--quiet` starts without the console, as sandboxes are; `--stop-at-init` ends the machine as soon as PID 1 opened its
//! link to the host.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen, socket,
};
use sandpiper_protocol::vmm::{
    self, DiskConfig, Event, ExitRecord, MachineConfig, MonitorMessage, Reply, Request, RequestMessage, Timings,
};

#[derive(Default)]
struct Arguments {
    kernel: PathBuf,
    disks: Vec<PathBuf>,
    memory: u32,
    vcpus: u8,
    kernel_args: String,
    quiet: bool,
    monitor: Option<PathBuf>,
    stop_at_init: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = parse()?;
    let monitor = match &arguments.monitor {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("../sandpiper-vmm"),
    };
    let folder = std::env::temp_dir();
    let vsock_path = folder.join(format!("sandpiper-boot-{}.vsock", std::process::id()));
    let vsock = UnixListener::bind(&vsock_path)?;
    let exit_path = folder.join(format!("sandpiper-boot-{}.exit", std::process::id()));
    let mut exit = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&exit_path)?;
    std::fs::remove_file(&exit_path)?;
    std::fs::remove_file(&vsock_path)?;

    let (listener, client) = control_sockets()?;
    for fd in [listener.as_fd(), exit.as_fd()] {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let mut child = Command::new(&monitor)
        .args(["--control-fd", &listener.as_raw_fd().to_string(), "--exit-fd", &exit.as_raw_fd().to_string()])
        .args(["--name", "boot example"])
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{}: {error}", monitor.display()))?;

    let timings = drive(&arguments, client.as_fd(), &vsock)?;
    let status = child.wait()?;
    let mut record = String::new();
    exit.rewind()?;
    exit.read_to_string(&mut record)?;
    let record: ExitRecord = serde_json::from_str(&record)?;
    println!("\n--- {:?}: {} ({status})", record.reason, record.message);
    report(&timings);
    Ok(())
}

/// Boots, waits for the end of the connection, and returns the last timings.
fn drive(arguments: &Arguments, control: BorrowedFd<'_>, vsock: &UnixListener) -> Result<Timings, Box<dyn Error>> {
    let mut config = MachineConfig {
        vcpus: arguments.vcpus,
        memory_mib: arguments.memory,
        kernel_args: arguments.kernel_args.clone(),
        disks: Vec::new(),
        console: !arguments.quiet,
    };
    let kernel = File::open(&arguments.kernel)?;
    let mut files = Vec::new();
    for (index, path) in arguments.disks.iter().enumerate() {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = file.metadata()?.len();
        config.disks.push(DiskConfig { serial: format!("disk{index}"), size, layers: 1, read_only: false });
        files.push(file);
    }
    let stdout = std::io::stdout();
    let mut fds = vec![kernel.as_fd()];
    fds.extend(files.iter().map(AsFd::as_fd));
    fds.push(vsock.as_fd());
    if !arguments.quiet {
        fds.push(stdout.as_fd());
    }
    vmm::send(control, &RequestMessage { id: 1, request: Request::Boot(config) }, &fds)?;

    let mut timings = Timings::default();
    let mut links: Vec<OwnedFd> = Vec::new();
    while let Some(packet) = vmm::receive(control)? {
        match serde_json::from_slice(&packet.bytes)? {
            MonitorMessage::Reply { result: Err(fault), .. } => return Err(fault.into()),
            MonitorMessage::Reply { result: Ok(Reply::Booted(times)), .. } => timings = times,
            MonitorMessage::Reply { result: Ok(Reply::Status { timings: times, .. }), .. } => timings = times,
            MonitorMessage::Reply { result: Ok(Reply::Stopping), .. } => {}
            MonitorMessage::Event(Event::GuestConnected { .. }) => {
                links.extend(packet.fds);
                vmm::send(control, &RequestMessage { id: 2, request: Request::Status }, &[])?;
                if arguments.stop_at_init {
                    vmm::send(control, &RequestMessage { id: 3, request: Request::Stop }, &[])?;
                }
            }
        }
    }
    Ok(timings)
}

fn report(timings: &Timings) {
    let since_start = |time: u64| match time.checked_sub(timings.process_start_us) {
        Some(time) => format!("{:?}", Duration::from_micros(time)),
        None => "never".to_owned(),
    };
    println!("since the process began: boot request {}", since_start(timings.boot_request_us));
    println!("                         first instruction {}", since_start(timings.first_instruction_us));
    println!("                         link opened by PID 1 {}", since_start(timings.guest_init_us));
}

/// A listening socket for the monitor and our connection to it; nothing has a path.
fn control_sockets() -> Result<(OwnedFd, OwnedFd), Box<dyn Error>> {
    let new = || socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let (listener, client) = (new()?, new()?);
    // An unnamed address has the kernel choose an abstract one.
    bind(listener.as_raw_fd(), &UnixAddr::new_unnamed())?;
    listen(&listener, Backlog::new(4)?)?;
    let address: UnixAddr = getsockname(listener.as_raw_fd())?;
    connect(client.as_raw_fd(), &address)?;
    Ok((listener, client))
}

fn parse() -> Result<Arguments, Box<dyn Error>> {
    let mut parsed = Arguments { memory: 256, vcpus: 1, ..Arguments::default() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--kernel" => parsed.kernel = value()?.into(),
            "--disk" => parsed.disks.push(value()?.into()),
            "--memory" => parsed.memory = value()?.parse()?,
            "--vcpus" => parsed.vcpus = value()?.parse()?,
            "--args" => parsed.kernel_args = value()?,
            "--monitor" => parsed.monitor = Some(value()?.into()),
            "--quiet" => parsed.quiet = true,
            "--stop-at-init" => parsed.stop_at_init = true,
            _ => {
                return Err(
                    format!("unknown argument {argument}; the first lines of vmm/examples/boot.rs say more").into()
                );
            }
        }
    }
    if parsed.kernel.as_os_str().is_empty() {
        return Err("--kernel is missing; the first lines of vmm/examples/boot.rs say more".into());
    }
    Ok(parsed)
}
