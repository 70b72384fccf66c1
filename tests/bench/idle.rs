//! Many sandboxes that do nothing: what they take of the host, and how long the next one takes to start beside them.
//!
//! | result | |
//! |---|---|
//! | `warm_create_to_first_output_at_N` | of one more sandbox when N run |
//! | `host_of_N` | memory that is missing on the host, per sandbox |
//! | `unique_of_N`, … | [`usage::report_memory`] |
//! | `guest_of_N` | memory that a guest says is in use |
//! | `host_cpu_of_N`, `monitor_cpu_of_N` | time of a processor that all of the host, and one monitor, took in a minute |
//! | `agent_cpu_of_N`, `api_cpu_of_N` | that of the agent's and the API's process |
//! | `exits_of_N`, `mmio_exits_of_N` | how often a second a guest was left, by KVM's count, and of that for a device's registers |

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::{join_all, try_join_all};
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Host, Sandbox, small};

use crate::report::{Report, field_kib};
use crate::starts;
use crate::usage::{self, report_memory};

/// Starts are measured beside so many; and beside all.
const BESIDE: [usize; 3] = [1, 10, 50];
/// Starts that are measured beside each number.
const MOST_STARTS: usize = 20;
const MINUTE: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(20);

/// Of `wanted` sandboxes, or of as many as the host takes.
pub(crate) async fn run(wanted: usize, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    // The smallest there is, so that many fit.
    let request = CreateSandbox { memory_mb: Some(128), timeout: Some(3600), ..small() };
    host.wait_until_warm(&request).await.delete().await;
    let before = usage::available().await?;
    let mut sandboxes: Vec<Sandbox> = Vec::new();
    let counts = BESIDE.into_iter().filter(|count| *count < wanted).chain([wanted]);
    for count in counts {
        // One more, which makes room for the starts that are measured.
        let has_room = fill(&mut sandboxes, count + 1, &request).await?;
        sandboxes.pop().context("the host takes no sandbox")?.delete().await;
        starts_beside(sandboxes.len(), &request, runs.min(MOST_STARTS), report).await?;
        if !has_room {
            eprintln!("idle: the host has room for {} sandboxes and one more, not for {wanted}", sandboxes.len());
            break;
        }
    }
    let count = sandboxes.len();
    let share = f64::from(u32::try_from(count)?);
    report.add("idle", &format!("host_of_{count}"), "KiB", &[(before - usage::available().await?) / share]);
    report_memory("idle", &sandboxes, report)?;
    processors(&sandboxes, report).await?;
    // Last: asking wakes the guests.
    let guests = try_join_all(sandboxes.iter().map(guest_used)).await?;
    report.add("idle", &format!("guest_of_{count}"), "KiB", &guests);
    join_all(sandboxes.into_iter().map(Sandbox::delete)).await;
    Ok(())
}

/// Creates sandboxes until there are so many; false where the host has no room for them.
async fn fill(sandboxes: &mut Vec<Sandbox>, count: usize, request: &CreateSandbox) -> anyhow::Result<bool> {
    let host = Host::shared();
    while sandboxes.len() < count {
        match host.try_sandbox(request).await {
            Ok(sandbox) => {
                starts::check(&sandbox, StartKind::Warm).await?;
                sandboxes.push(sandbox);
            }
            Err(error) if matches!(error.code(), Some("capacity_unavailable" | "sandbox_quota_exceeded")) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

async fn starts_beside(count: usize, request: &CreateSandbox, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for _ in 0..runs {
        let start = starts::timed(request, StartKind::Warm).await?;
        times.push(start.first_output);
        start.sandbox.delete().await;
    }
    report.add("idle", &format!("warm_create_to_first_output_at_{count}"), "ms", &times);
    Ok(())
}

/// A minute in which nobody asks for anything.
async fn processors(sandboxes: &[Sandbox], report: &mut Report) -> anyhow::Result<()> {
    let monitors: Vec<u32> = sandboxes.iter().map(usage::monitor_of).collect::<Result<_, _>>()?;
    let host = Host::shared();
    let services = [host.agent_pid().context("no agent")?, host.api_pid().context("no API")?];
    let services = services.map(|pid| pid.as_raw().unsigned_abs());
    let spent = |processes: &[u32]| -> anyhow::Result<Vec<Duration>> {
        processes.iter().map(|process| usage::processor_time(*process, |_| true)).collect()
    };
    let exits = |file| -> anyhow::Result<Vec<u64>> {
        monitors.iter().map(|monitor| usage::count_of_kvm(*monitor, file)).collect()
    };
    let look = || {
        anyhow::Ok((usage::host_time()?, spent(&monitors)?, spent(&services)?, exits("exits")?, exits("mmio_exits")?))
    };
    // Until what was taken for the starts before is there again.
    tokio::time::sleep(REST).await;
    let before = look()?;
    tokio::time::sleep(MINUTE).await;
    let after = look()?;
    let milliseconds = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() * 1000.0;
    let times = |after: Vec<Duration>, before: Vec<Duration>| -> Vec<f64> {
        after.into_iter().zip(before).map(|(after, before)| milliseconds(after, before)).collect()
    };
    let rates = |after: Vec<u64>, before: Vec<u64>| -> anyhow::Result<Vec<f64>> {
        let count =
            |(after, before): (u64, u64)| anyhow::Ok(f64::from(u32::try_from(after - before)?) / MINUTE.as_secs_f64());
        after.into_iter().zip(before).map(count).collect()
    };
    let mut add = |name: &str, unit, samples: &[f64]| {
        report.add("idle", &format!("{name}_of_{}", sandboxes.len()), unit, samples);
    };
    add("host_cpu", "ms/min", &[milliseconds(after.0, before.0)]);
    add("monitor_cpu", "ms/min", &times(after.1, before.1));
    let services = times(after.2, before.2);
    add("agent_cpu", "ms/min", &services[..1]);
    add("api_cpu", "ms/min", &services[1..]);
    add("exits", "1/s", &rates(after.3, before.3)?);
    add("mmio_exits", "1/s", &rates(after.4, before.4)?);
    Ok(())
}

/// KiB in use in a guest, by its kernel's account.
async fn guest_used(sandbox: &Sandbox) -> anyhow::Result<f64> {
    let text = sandbox.out("cat /proc/meminfo").await;
    let kib = |field| field_kib(&text, field).with_context(|| format!("no {field} in a guest"));
    let (total, available) = (kib("MemTotal:")?, kib("MemAvailable:")?);
    ensure!(total > available, "a guest of {total} KiB has {available} KiB to spare");
    Ok(f64::from(u32::try_from(total - available)?))
}
