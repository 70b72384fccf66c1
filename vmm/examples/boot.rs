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

mod shared;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use sandpiper_protocol::vmm::{
    self, DiskConfig, DiskLimits, Event, MachineConfig, MonitorMessage, Reply, Request, RequestMessage, Timings,
};

use shared::{Monitor, receive};

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
    let monitor = Monitor::start(arguments.monitor.as_deref())?;
    let timings = drive(&arguments, &monitor)?;
    let (record, status) = monitor.end()?;
    println!("\n--- {:?}: {} ({status})", record.reason, record.message);
    report(&timings);
    Ok(())
}

/// Boots, waits for the end of the connection, and returns the last timings.
fn drive(arguments: &Arguments, monitor: &Monitor) -> Result<Timings, Box<dyn Error>> {
    let vsock = shared::vsock()?;
    let mut config = MachineConfig {
        vcpus: arguments.vcpus,
        memory_mib: arguments.memory,
        kernel_args: arguments.kernel_args.clone(),
        disks: Vec::new(),
        disk_limits: DiskLimits::default(),
        net: None,
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
    vmm::send(monitor.control(), &RequestMessage { id: 1, request: Request::Boot(config) }, &fds)?;

    let mut timings = Timings::default();
    let mut links: Vec<OwnedFd> = Vec::new();
    while let Some((message, fds)) = receive(monitor)? {
        match message {
            MonitorMessage::Reply { result: Err(fault), .. } => return Err(fault.into()),
            MonitorMessage::Reply { result: Ok(Reply::Booted(times)), .. } => timings = times,
            MonitorMessage::Reply { result: Ok(Reply::Status { timings: times, .. }), .. } => timings = times,
            MonitorMessage::Reply { result: Ok(_), .. } => {}
            MonitorMessage::Event(Event::Disk(event)) => eprintln!("{event:?}"),
            MonitorMessage::Event(Event::GuestConnected { .. }) => {
                links.extend(fds);
                vmm::send(monitor.control(), &RequestMessage { id: 2, request: Request::Status }, &[])?;
                if arguments.stop_at_init {
                    vmm::send(monitor.control(), &RequestMessage { id: 3, request: Request::Stop }, &[])?;
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
