//! Times restores of a guest of a few instructions, on whatever /dev/kvm this machine has: from the request to the first
//! instruction, out of a prepared monitor and out of one that had prepared nothing. Prints a line of JSON for each, of all times
//! in microseconds; `scripts/bench restore-payload` makes results of them.
//!
//! ```sh
//! cargo build --release -p sandpiper-vmm --bins --example restore
//! target/release/examples/restore [--runs N] [--memory MIB]
//! ```

#[path = "../tests/vmm/payload.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod payload;
mod shared;

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use sandpiper_protocol::vmm::{
    self, DiskLimits, MachineConfig, MonitorMessage, Reply, Request, RequestMessage, RestoreConfig, Shape,
    SnapshotConfig, Then, Timings,
};

use payload::Payload;
use shared::{Monitor, receive};

struct Arguments {
    runs: usize,
    memory: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { runs, memory } = parse()?;
    let (state, layer) = (file()?, file()?);
    take_snapshot(memory, &state, &layer)?;
    for (metric, prepared) in [("prepared", true), ("unprepared", false)] {
        let mut times = Vec::with_capacity(runs);
        for _ in 0..runs {
            let timings = restore(memory, &state, &layer, prepared)?;
            times.push(timings.first_instruction_us.saturating_sub(timings.boot_request_us));
        }
        println!(r#"{{"metric":"request_to_first_instruction_{metric}","us":{times:?}}}"#);
    }
    Ok(())
}

/// Boots a guest that counts, and writes it down.
fn take_snapshot(memory: u32, state: &File, layer: &File) -> Result<(), Box<dyn Error>> {
    let monitor = Monitor::start(None)?;
    let vsock = shared::vsock()?;
    let mut kernel = file()?;
    kernel.write_all(&Payload::new().loop_for_ever().elf())?;
    let config = MachineConfig {
        vcpus: 1,
        memory_mib: memory,
        kernel_args: String::new(),
        disks: Vec::new(),
        disk_limits: DiskLimits::default(),
        net: None,
        console: false,
    };
    ask(&monitor, Request::Boot(config), &[kernel.as_fd(), vsock.as_fd()])?;
    let config = SnapshotConfig { push_layers: false, then: Then::Pause, past_cache: false };
    ask(&monitor, Request::Snapshot(config), &[state.as_fd(), layer.as_fd()])?;
    stop(monitor)
}

fn restore(memory: u32, state: &File, layer: &File, prepared: bool) -> Result<Timings, Box<dyn Error>> {
    let monitor = Monitor::start(None)?;
    let vsock = shared::vsock()?;
    // Answered once the process is up, which is not to be measured.
    ask(&monitor, Request::Status, &[])?;
    if prepared {
        ask(&monitor, Request::Prepare(Shape { vcpus: 1, memory_mib: memory }), &[])?;
    }
    let config = RestoreConfig {
        memory_layers: 1,
        working_set: false,
        tells_touched: false,
        disk_layers: Vec::new(),
        disk_sizes: Vec::new(),
        disk_limits: DiskLimits::default(),
        net: None,
        console: false,
    };
    let reply = ask(&monitor, Request::Restore(config), &[state.as_fd(), layer.as_fd(), vsock.as_fd()])?;
    stop(monitor)?;
    match reply {
        Reply::Restored(timings) => Ok(timings),
        other => Err(format!("unexpected answer {other:?}").into()),
    }
}

fn stop(monitor: Monitor) -> Result<(), Box<dyn Error>> {
    ask(&monitor, Request::Stop, &[])?;
    monitor.end()?;
    Ok(())
}

fn ask(monitor: &Monitor, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, Box<dyn Error>> {
    vmm::send(monitor.control(), &RequestMessage { id: 1, request }, fds)?;
    match receive(monitor)? {
        Some((MonitorMessage::Reply { result, .. }, _)) => Ok(result?),
        Some((MonitorMessage::Event(event), _)) => Err(format!("unexpected {event:?}").into()),
        None => Err("the monitor ended".into()),
    }
}

fn file() -> Result<File, Box<dyn Error>> {
    Ok(File::from(memfd_create(c"file", MFdFlags::MFD_CLOEXEC)?))
}

fn parse() -> Result<Arguments, Box<dyn Error>> {
    let mut parsed = Arguments { runs: 50, memory: 512 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--runs" => parsed.runs = value.parse::<usize>()?.max(1),
            "--memory" => parsed.memory = value.parse()?,
            _ => return Err(format!("unknown argument {argument}; see the first lines of this example").into()),
        }
    }
    Ok(parsed)
}
