//! A guest's network: throughput and latency to a server on the other side of its slot, under policies of several sizes.

use anyhow::Context;
use sandpiper::client::{CreateSandbox, NetworkPolicy};
use serde::Deserialize;
use support::internet::{API, Internet};
use support::{Host, shell, small};

use crate::figure::Report;

/// Entries; none: all is allowed.
const SIZES: [u32; 4] = [0, 10, 1000, 10_000];

/// Runs in the guest, against the echo at port 9999.
const SCRIPT: &str = r#"
import json, socket, sys, threading, time
SIZE, COUNT = 16 << 20, 200
def dial():
    sock = socket.create_connection((sys.argv[1], 9999))
    sock.recv(100)
    return sock
def latency():
    sock = dial()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(COUNT):
        begin = time.monotonic()
        sock.sendall(b"x")
        sock.recv(1)
        times.append((time.monotonic() - begin) * 1000)
    return times
def connect():
    times = []
    for _ in range(COUNT // 4):
        begin = time.monotonic()
        dial().close()
        times.append((time.monotonic() - begin) * 1000)
    return times
def echo():
    sock, left = dial(), SIZE
    threading.Thread(target=lambda: [sock.sendall(bytes(1 << 16)) for _ in range(SIZE >> 16)], daemon=True).start()
    begin = time.monotonic()
    while left:
        left -= len(sock.recv(1 << 16))
    return SIZE / (1 << 20) / (time.monotonic() - begin)
print(json.dumps({"latency": latency(), "connect": connect(), "echo": [echo() for _ in range(3)]}))
"#;

#[derive(Deserialize)]
struct Round {
    latency: Vec<f64>,
    connect: Vec<f64>,
    echo: Vec<f64>,
}

pub(crate) async fn run(report: &mut Report) -> anyhow::Result<()> {
    Internet::shared();
    let host = Host::shared();
    let sandbox = host.sandbox_with(&CreateSandbox { timeout: Some(3600), ..small() }).await;
    sandbox.data_plane.write_file("/root/bench.py", SCRIPT.as_bytes().to_vec(), Some("root")).await?;
    for size in SIZES {
        host.client.replace_network(&sandbox.id, &policy(size)).await?;
        let output = sandbox.data_plane.run(&shell(&format!("python3 /root/bench.py {API}"), Some("root"))).await?;
        let round: Round = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        report.add("net", &format!("round_trip_{size}"), "ms", &round.latency);
        report.add("net", &format!("connect_{size}"), "ms", &round.connect);
        report.add("net", &format!("echo_{size}"), "MiB/s", &round.echo);
    }
    sandbox.delete().await;
    Ok(())
}

/// The server is allowed by the last of the entries.
fn policy(size: u32) -> NetworkPolicy {
    if size == 0 {
        return NetworkPolicy::default();
    }
    let others = (1..size).map(|number| std::net::Ipv4Addr::from(0x2000_0000 + number * 2).to_string());
    let allow_out = others.chain([API.to_owned()]).collect();
    NetworkPolicy { allow_internet_access: false, allow_out, ..NetworkPolicy::default() }
}
