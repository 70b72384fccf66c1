//! What comes through the data plane: files up and down, and the output of a process. And what the way into the guest
//! carries without it: the same bytes from a server that does nothing but send them, at a preview URL.

use std::time::Instant;

use anyhow::ensure;
use sandpiper::client::{CreateSandbox, ExposedPort};
use support::{Host, eventually, shell, small};

use crate::report::{Report, mebibytes};

/// Of each file, and of the output.
const BYTES: usize = 32 << 20;
const MOST_ROUNDS: usize = 5;

const PORT: u16 = 8000;

/// Sends the file to whoever asks, out of the page cache.
const SERVER: &str = r#"
import os, socket
server = socket.create_server(("127.0.0.1", 8000))
while True:
    client, _ = server.accept()
    try:
        with client, open("file", "rb") as file:
            head = b""
            while b"\r\n\r\n" not in head and (piece := client.recv(65536)):
                head += piece
            size = os.fstat(file.fileno()).st_size
            client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
            client.sendfile(file)
    except OSError:
        pass
"#;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let exposed_ports = vec![ExposedPort::public(PORT)];
    let sandbox = host.wait_until_warm(&CreateSandbox { exposed_ports, ..small() }).await;
    sandbox.data_plane.write_file("send.py", SERVER.as_bytes().to_vec(), None).await?;
    sandbox.data_plane.start(&shell("exec python3 send.py", None)).await?;
    let opened = || async { host.client.port(&sandbox.id, PORT).await.is_ok_and(|port| port.status == "open") };
    eventually("the server listens", opened).await;
    let url = host.client.port(&sandbox.id, PORT).await?.url;
    // Nothing that could be stored or sent as less than it is.
    let content: Vec<u8> =
        std::iter::successors(Some(1u32), |last| Some(last.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f)))
            .flat_map(u32::to_le_bytes)
            .take(BYTES)
            .collect();
    let (mut up, mut down, mut plain, mut output) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let rate = |begin: Instant| mebibytes(BYTES as u64) / begin.elapsed().as_secs_f64();
    for _ in 0..runs.clamp(1, MOST_ROUNDS) {
        let body = content.clone();
        let begin = Instant::now();
        sandbox.data_plane.write_file("file", body, None).await?;
        up.push(rate(begin));

        let begin = Instant::now();
        let read = sandbox.data_plane.read_file("file", None).await?;
        down.push(rate(begin));
        ensure!(read == content, "the file came back as another");

        let begin = Instant::now();
        let sent = host.client.http().get(&url).send().await?.bytes().await?;
        plain.push(rate(begin));
        ensure!(sent == content, "the server sent another file");

        let begin = Instant::now();
        let printed = sandbox.data_plane.run(&shell("exec cat file", None)).await?;
        output.push(rate(begin));
        ensure!(printed.stdout == content, "the output is not the file");
    }
    report.add("transfer", "upload", "MiB/s", &up);
    report.add("transfer", "download", "MiB/s", &down);
    report.add("transfer", "plain_download", "MiB/s", &plain);
    report.add("transfer", "process_output", "MiB/s", &output);
    sandbox.delete().await;
    Ok(())
}
