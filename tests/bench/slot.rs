//! Network slots, on the kernel of the machine where this runs: no guest has a part in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use sandpiper_network::config::Config;
use sandpiper_network::firewall::Firewall;
use sandpiper_network::netns;
use sandpiper_network::slots::{Slot, Slots};
use sandpiper_policy::{Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;

use crate::report::{Report, elapsed};

/// Beside an agent's own.
pub(crate) fn config() -> Config {
    let transit = "100.67.0.0/16".parse().unwrap_or_default();
    let transit6 = "fd5a:5d::/48".parse().unwrap_or_default();
    Config { name: "spb".into(), transit, transit6, max_slots: 250, pool: 8, ..Config::default() }
}

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let slots = Slots::start(Arc::new(config()), &[]).await?;
    let measured = measure(&slots, runs, report).await;
    slots.close().await;
    measured
}

async fn measure(slots: &Slots, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let policy = Policy::compile(&NetworkPolicy::default(), &Profiles::default(), &Platform::default())?;
    let (mut assign, mut recycle) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        until(|| Ok(netns::names("spb-")?.len() >= 8)).await?;
        let begin = Instant::now();
        let slot = slots.take().await?;
        assign_to_guest(&slot, &policy)?;
        assign.push(elapsed(begin));
        let name = slot.name().to_owned();
        let begin = Instant::now();
        slots.destroy(slot).await;
        until(|| Ok(!netns::names("spb-")?.contains(&name))).await?;
        recycle.push(elapsed(begin));
    }
    report.add("slot", "assign", "ms", &assign);
    report.add("slot", "recycle", "ms", &recycle);

    let begin = Instant::now();
    let taken = futures_util::future::try_join_all((0..200).map(|_| slots.take())).await?;
    report.add("slot", "make_200", "ms", &[elapsed(begin)]);
    let begin = Instant::now();
    for slot in taken {
        slots.destroy(slot).await;
    }
    until(|| Ok(netns::names("spb-")?.len() <= 8)).await?;
    report.add("slot", "remove_200", "ms", &[elapsed(begin)]);
    Ok(())
}

/// All that a machine's start waits for.
fn assign_to_guest(slot: &Slot, policy: &Policy) -> anyhow::Result<()> {
    let mac = Slot::mac_of("bench");
    slot.set_guest(mac)?;
    let firewall = Firewall::open(slot.netns())?;
    firewall.set_guest(mac)?;
    firewall.apply(policy, 1, &[])?;
    drop(slot.open_tap()?);
    Ok(())
}

async fn until(mut reached: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !reached()? {
        ensure!(begin.elapsed() < Duration::from_secs(120), "slots do not come or go");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
