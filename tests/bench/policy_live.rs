//! A new policy through the API, for a guest with open connections: until it is in force, all of them alive.

use std::time::Instant;

use anyhow::ensure;
use support::internet::{API, Internet};
use support::{Dialogue, Host, REACHER, small};

use crate::net::policy;
use crate::report::{Report, elapsed};

/// Entries of a policy.
const SIZES: [u32; 3] = [10, 1000, 10_000];
/// To the peer, which every policy allows.
const CONNECTIONS: usize = 100;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    Internet::shared();
    let host = Host::shared();
    let sandbox = host.wait_until_warm(&small()).await;
    let mut guest = Dialogue::start(&sandbox, REACHER).await;
    for number in 0..CONNECTIONS {
        let held = guest.ask(&format!("hold {API} 9999")).await;
        ensure!(held == format!("held {number}"), "connection {number} is {held}");
    }
    for size in SIZES {
        let (larger, smaller) = (policy(size), policy(size - 1));
        let mut applied = Vec::new();
        for run in 0..runs {
            // The one before is another, or there would be nothing to do.
            let policy = if run.is_multiple_of(2) { &larger } else { &smaller };
            let begin = Instant::now();
            let network = host.client.replace_network(&sandbox.id, policy).await?;
            applied.push(elapsed(begin));
            ensure!(network.apply_status == "applied", "a policy of {size} entries is {}", network.apply_status);
        }
        report.add("policy-live", &format!("api_apply_{size}_connections_{CONNECTIONS}"), "ms", &applied);
        for number in 0..CONNECTIONS {
            let state = guest.ask(&format!("use {number}")).await;
            ensure!(state == "alive", "connection {number} is {state} after policies of {size} entries");
        }
    }
    sandbox.delete().await;
    Ok(())
}
