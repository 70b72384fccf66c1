//! Policies: compiling one, and putting it in force in a slot in place of another of the same size.

use std::sync::Arc;
use std::time::Instant;

use sandpiper_network::firewall::Firewall;
use sandpiper_network::slots::Slots;
use sandpiper_policy::{Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;

use crate::report::{Report, elapsed};
use crate::slot::config;

/// Entries of a policy.
const SIZES: [u32; 3] = [10, 1000, 10_000];

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let slots = Slots::start(Arc::new(config()), &[]).await?;
    let slot = slots.take().await?;
    let measured =
        Firewall::open(slot.netns()).map_err(Into::into).and_then(|firewall| measure(&firewall, runs, report));
    slots.destroy(slot).await;
    slots.close().await;
    measured
}

fn measure(firewall: &Firewall, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    for size in SIZES {
        let (mut compile, mut apply) = (Vec::new(), Vec::new());
        for (generation, run) in (1..).zip(0..runs) {
            let policy = policy(size, run);
            let begin = Instant::now();
            let policy = Policy::compile(&policy, &Profiles::default(), &Platform::default())?;
            compile.push(elapsed(begin));
            let begin = Instant::now();
            firewall.apply(&policy, generation, &[])?;
            apply.push(elapsed(begin));
        }
        report.add("policy-apply", &format!("compile_{size}"), "ms", &compile);
        report.add("policy-apply", &format!("apply_{size}"), "ms", &apply);
    }
    Ok(())
}

/// Addresses with and without ports, none beside another, so that nothing can be put together.
fn policy(size: u32, run: usize) -> NetworkPolicy {
    let first = if run.is_multiple_of(2) { 0x2000_0000 } else { 0x3000_0000 };
    let entry = |number: u32| {
        let address = std::net::Ipv4Addr::from(first + number * 2);
        if number.is_multiple_of(2) { address.to_string() } else { format!("{address}:443") }
    };
    let allow_out = (0..size).map(entry).collect();
    NetworkPolicy { allow_internet_access: false, allow_out, ..NetworkPolicy::default() }
}
