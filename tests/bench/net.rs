//! A guest's network: latency and throughput to a peer on the other side of its slot, under policies of several sizes.
//! Guest and peer run the same small program; no interpreter is in the way.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::ensure;
use sandpiper::client::{CreateSandbox, NetworkPolicy};
use sandpiper_bench_guest::{Job, Transfer, Volume};
use support::internet::{API, Internet};
use support::{Host, small};

use crate::guest_program::{Peer, Program, throughput};
use crate::report::Report;

/// Entries; none: all is allowed.
const SIZES: [u32; 4] = [0, 10, 1000, 10_000];
const PORT: u16 = 7777;
const ROUND_TRIPS: usize = 1000;
const CONNECTIONS: usize = 100;
const STREAMS: [u32; 2] = [1, 4];
const ROUND: Duration = Duration::from_secs(3);
const MOST_ROUNDS: usize = 3;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    Internet::shared();
    let host = Host::shared();
    let sandbox = host.wait_until_warm(&CreateSandbox { timeout: Some(3600), ..small() }).await;
    let program = Program::install(&sandbox).await?;
    let peer = SocketAddr::new(API.parse()?, PORT);
    let _peer = Peer::start(peer).await?;
    for size in SIZES {
        let network = host.client.replace_network(&sandbox.id, &policy(size)).await?;
        ensure!(network.apply_status == "applied", "a policy of {size} entries is {}", network.apply_status);
        let times: Vec<f64> = program.run(&Job::RoundTrips { peer, count: ROUND_TRIPS }).await?;
        report.add("net", &format!("round_trip_{size}"), "ms", &times);
        let times: Vec<f64> = program.run(&Job::Connections { peer, count: CONNECTIONS }).await?;
        report.add("net", &format!("connect_{size}"), "ms", &times);
        for (upload, name) in [(true, "upload"), (false, "download")] {
            for streams in STREAMS {
                let job = Job::Transfer(Transfer { peer, upload, streams, time: ROUND });
                let mut rates = Vec::new();
                for _ in 0..runs.clamp(1, MOST_ROUNDS) {
                    rates.push(throughput(&program.run::<Volume>(&job).await?));
                }
                report.add("net", &format!("{name}_{size}_streams_{streams}"), "MiB/s", &rates);
            }
        }
    }
    sandbox.delete().await;
    Ok(())
}

/// The peer is allowed by the last of the entries.
pub(crate) fn policy(size: u32) -> NetworkPolicy {
    if size == 0 {
        return NetworkPolicy::default();
    }
    let others = (1..size).map(|number| Ipv4Addr::from(0x2000_0000 + number * 2).to_string());
    let allow_out = others.chain([API.to_owned()]).collect();
    NetworkPolicy { allow_internet_access: false, allow_out, ..NetworkPolicy::default() }
}
