//! A preview as people have it: Python's web server in a guest, at its URL.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use sandpiper::client::{CreateSandbox, ExposedPort};
use support::{Host, eventually, shell, small};

use crate::load::{Load, Rounds};
use crate::report::Report;

/// The server has a thread for each.
const CONNECTIONS: usize = 8;
const ROUND: Duration = Duration::from_secs(5);
const MOST_ROUNDS: usize = 3;
const PORT: u16 = 8000;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let exposed_ports = vec![ExposedPort::public(PORT)];
    let sandbox = host.sandbox_with(&CreateSandbox { timeout: Some(3600), exposed_ports, ..small() }).await;
    sandbox.sh("mkdir site && head -c 100 /dev/zero > site/100b && head -c 65536 /dev/zero > site/64k").await;
    let server = format!("exec python3 -m http.server {PORT} --bind 127.0.0.1 --directory site");
    sandbox.data_plane.start(&shell(&server, None)).await?;
    let opened = || async { host.client.port(&sandbox.id, PORT).await.is_ok_and(|port| port.status == "open") };
    eventually("the server listens", opened).await;

    let url = host.client.port(&sandbox.id, PORT).await?.url;
    let authority = url.strip_prefix("http://").context("the host of benchmarks has no TLS")?.trim_end_matches('/');
    let port: u16 = authority.rsplit_once(':').context("a URL without a port")?.1.parse()?;
    let address = (Ipv4Addr::LOCALHOST, port).into();
    for name in ["100b", "64k"] {
        let load = Load {
            address,
            host: authority.to_owned(),
            path: format!("/{name}"),
            key: None,
            tls: None,
            connections: CONNECTIONS,
        };
        let mut rounds = Rounds::default();
        for _ in 0..runs.clamp(1, MOST_ROUNDS) {
            rounds.add(&load.clone().run(ROUND).await?);
        }
        rounds.report("preview-guest", name, report);
    }
    sandbox.delete().await;
    Ok(())
}
