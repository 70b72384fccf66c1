//! What the host spends on sandboxes: memory and time of its processors.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use support::{Host, Sandbox};
use tokio::time::Instant;

use crate::report::{Report, field_kib, meminfo};

/// Monitors for the next sandboxes are started and what was deleted is cleared away within this time.
const SETTLING: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Ticks a second in what the kernel tells of times (include/uapi/asm-generic/param.h, `__USER_HZ`).
const USER_HZ: u64 = 100;
const DEBUGFS: &str = "/sys/kernel/debug";
const KVM_COUNTS: &str = "/sys/kernel/debug/kvm";
/// Less than this is noise.
const STILL_KIB: u64 = 1024;

/// Adds the memory that each of these sandboxes, which do nothing, takes of the host, in KiB:
///
/// | result | |
/// |---|---|
/// | `unique` | pages of its monitor, the guest's memory among them, that no other process has |
/// | `proportional` | the same with its share of those that others have too |
/// | `cgroup` | what the kernel charges to its cgroup: besides, kernel memory and the page cache that it was the first to fill |
pub(crate) fn report_memory(bench: &str, sandboxes: &[Sandbox], report: &mut Report) -> anyhow::Result<()> {
    let (mut unique, mut proportional, mut cgroup) = (Vec::new(), Vec::new(), Vec::new());
    for sandbox in sandboxes {
        let monitor = monitor_of(sandbox)?;
        let smaps = fs::read_to_string(format!("/proc/{monitor}/smaps_rollup"))?;
        let kib = |field| field_kib(&smaps, field).with_context(|| format!("no {field} of process {monitor}"));
        unique.push(float(kib("Private_Clean:")? + kib("Private_Dirty:")?));
        proportional.push(float(kib("Pss:")?));
        cgroup.push(float(cgroup_bytes(monitor)? >> 10));
    }
    for (name, samples) in [("unique", unique), ("proportional", proportional), ("cgroup", cgroup)] {
        report.add(bench, &format!("{name}_of_{}", sandboxes.len()), "KiB", &samples);
    }
    Ok(())
}

/// KiB of the host's memory that could still be had, once that holds still: whatever a sandbox takes is missing here, its
/// network, its page tables and its share of the agent's memory too.
pub(crate) async fn available() -> anyhow::Result<f64> {
    let give_up_at = Instant::now() + SETTLING;
    let mut last = 0;
    loop {
        let now = meminfo("MemAvailable:")?;
        if now.abs_diff(last) < STILL_KIB {
            return Ok(float(now));
        }
        ensure!(Instant::now() < give_up_at, "the host's memory does not hold still: {last} KiB, then {now} KiB");
        last = now;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What all processors of the host have done so far, as time of one of them.
pub(crate) fn host_time() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("an empty /proc/stat")?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // proc_stat(5): user, nice, system, idle, iowait, irq, softirq; what guests take is among the user's.
    let busy: u64 =
        ticks.iter().take(7).enumerate().filter(|(field, _)| ![3, 4].contains(field)).map(|(_, time)| time).sum();
    Ok(Duration::from_millis(busy * 1000 / USER_HZ))
}

/// What the threads of a process that `counts` selects by name have had of the processors.
pub(crate) fn processor_time(process: u32, counts: impl Fn(&str) -> bool) -> anyhow::Result<Duration> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?.path();
        if counts(fs::read_to_string(task.join("comm"))?.trim_end()) {
            // Documentation/scheduler/sched-stats.rst: time spent on the processor comes first.
            let text = fs::read_to_string(task.join("schedstat"))?;
            nanoseconds += text.split(' ').next().context("an empty schedstat")?.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// The process of a sandbox's monitor.
pub(crate) fn monitor_of(sandbox: &Sandbox) -> anyhow::Result<u32> {
    let monitor = Host::shared().monitor_of(&sandbox.id).context("a sandbox has no monitor")?;
    Ok(monitor.as_raw().unsigned_abs())
}

/// One of KVM's counts for the machine of a monitor, all vCPUs together (Documentation/virt/kvm: `kvm_stat`).
pub(crate) fn count_of_kvm(monitor: u32, file: &str) -> anyhow::Result<u64> {
    if !fs::exists(KVM_COUNTS)? {
        let mounted = Command::new("mount").args(["-t", "debugfs", "none", DEBUGFS]).status()?;
        ensure!(mounted.success() && fs::exists(KVM_COUNTS)?, "{KVM_COUNTS} is not there: this kernel counts no exits");
    }
    let prefix = format!("{monitor}-");
    let machine = fs::read_dir(KVM_COUNTS)?
        .filter_map(Result::ok)
        .find(|machine| machine.file_name().to_string_lossy().starts_with(&prefix))
        .with_context(|| format!("KVM knows no machine of process {monitor}"))?;
    Ok(fs::read_to_string(machine.path().join(file))?.trim_end().parse()?)
}

/// What the kernel has charged to the cgroup of a process, in a tree of version 2 or in that of memory of version 1.
fn cgroup_bytes(process: u32) -> anyhow::Result<u64> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let file = groups.lines().find_map(|line| {
        // cgroups(7): hierarchy, controllers, path.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next().filter(|path| *path != "/")?);
        let candidates = match controllers {
            "" => vec![
                format!("/sys/fs/cgroup{path}/memory.current"),
                format!("/sys/fs/cgroup/unified{path}/memory.current"),
            ],
            "memory" => vec![format!("/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")],
            _ => vec![],
        };
        candidates.into_iter().find(|file| fs::exists(file).unwrap_or(false))
    });
    let file = file.with_context(|| format!("process {process} has no cgroup of its own that accounts for memory"))?;
    Ok(fs::read_to_string(file)?.trim_end().parse()?)
}

#[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 KiB")]
fn float(kib: u64) -> f64 {
    kib as f64
}
