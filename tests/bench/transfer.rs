//! What comes through the data plane: files up and down, and the output of a process. And what the way into the guest
//! carries without it: the same bytes from a server that does nothing but send them, at a preview URL; and as many bytes each
//! way on a stream of vsock, with nothing in between but the monitor.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sandpiper::client::{CreateSandbox, ExposedPort};
use sandpiper_ingress::vsock;
use support::{Host, Sandbox, eventually, shell, small};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::connection::Connection;
use crate::report::{Report, mebibytes, ratio_of_medians};

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

const VSOCK_PORT: u32 = 5000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of its memory to who begins with "d"; from who begins with "u" as many bytes, and then one back.
const VSOCK_SERVER: &str = r#"
import socket
SIZE = 32 << 20
memory = bytearray(SIZE)
server = socket.socket(socket.AF_VSOCK)
server.bind((socket.VMADDR_CID_ANY, 5000))
server.listen()
while True:
    client, _ = server.accept()
    try:
        with client:
            if client.recv(1) == b"d":
                client.sendall(memory)
                client.recv(1)
            else:
                left = SIZE
                while left and (count := client.recv_into(memory)):
                    left -= count
                client.sendall(b".")
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
    let server = Origin::new(&host.client.port(&sandbox.id, PORT).await?.url, &sandbox)?;
    let files = Origin::new(&sandbox.session.data_plane_url, &sandbox)?;
    // Nothing that could be stored or sent as less than it is.
    let content: Vec<u8> =
        std::iter::successors(Some(1u32), |last| Some(last.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f)))
            .flat_map(u32::to_le_bytes)
            .take(BYTES)
            .collect();
    start_vsock_server(&sandbox).await?;
    let (mut up, mut down, mut plain, mut output) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut vsock_up, mut vsock_down) = (Vec::new(), Vec::new());
    let rate = |begin: Instant| mebibytes(BYTES as u64) / begin.elapsed().as_secs_f64();
    for _ in 0..runs.clamp(1, MOST_ROUNDS) {
        let mut stream = connect(&sandbox).await?;
        let begin = Instant::now();
        stream.write_all(b"u").await?;
        stream.write_all(&content).await?;
        stream.read_exact(&mut [0]).await?;
        vsock_up.push(rate(begin));

        let mut connection = files.connect().await?;
        let begin = Instant::now();
        connection.exchange_with(&files.head("POST", "/files?path=file", BYTES), &content).await?;
        up.push(rate(begin));

        let (mut stream, mut received) = (connect(&sandbox).await?, vec![0; BYTES]);
        let begin = Instant::now();
        stream.write_all(b"d").await?;
        stream.read_exact(&mut received).await?;
        vsock_down.push(rate(begin));

        let mut connection = files.connect().await?;
        let begin = Instant::now();
        let read = connection.exchange(&files.head("GET", "/files?path=file", 0)).await?;
        down.push(rate(begin));
        ensure!(read == content, "the file came back as another");

        let mut connection = server.connect().await?;
        let begin = Instant::now();
        let sent = connection.exchange(&server.head("GET", "/", 0)).await?;
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
    report.add("transfer", "vsock_upload", "MiB/s", &vsock_up);
    report.add("transfer", "vsock_download", "MiB/s", &vsock_down);
    report.add("transfer", "upload_over_vsock", "x", &[ratio_of_medians(&up, &vsock_up)?]);
    report.add("transfer", "download_over_vsock", "x", &[ratio_of_medians(&down, &vsock_down)?]);
    sandbox.delete().await;
    Ok(())
}

/// What a host name of the ingress leads to.
struct Origin {
    address: SocketAddr,
    host: String,
    access_token: String,
}

impl Origin {
    fn new(url: &str, sandbox: &Sandbox) -> anyhow::Result<Self> {
        let url = reqwest::Url::parse(url)?;
        let (host, port) =
            (url.host_str().context("a URL without a host")?, url.port().context("a URL without a port")?);
        Ok(Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            host: format!("{host}:{port}"),
            access_token: sandbox.session.access_token.clone(),
        })
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        // The head of the response, too.
        Ok(Connection::open(self.address).await?.with_room(BYTES + (16 << 10)))
    }

    fn head(&self, method: &str, path: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nX-Access-Token: {}\r\nContent-Type: application/octet-stream\r\n\
             Content-Length: {length}\r\n\r\n",
            self.host, self.access_token
        )
    }
}

async fn start_vsock_server(sandbox: &Sandbox) -> anyhow::Result<()> {
    sandbox.data_plane.write_file("vsock.py", VSOCK_SERVER.as_bytes().to_vec(), None).await?;
    sandbox.data_plane.start(&shell("exec python3 vsock.py", None)).await?;
    eventually("the server of vsock listens", || async { connect(sandbox).await.is_ok() }).await;
    Ok(())
}

async fn connect(sandbox: &Sandbox) -> Result<UnixStream, vsock::VsockError> {
    vsock::connect(&sandbox.vsock_socket(), VSOCK_PORT, CONNECT_TIMEOUT).await
}
