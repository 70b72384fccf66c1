//! Preview URLs: servers on 127.0.0.1 of the guest, seen from outside.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use sandpiper::client::{CreateSandbox, ExposedPort};
use support::{Host, Sandbox, eventually, shell, small};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

tests! {
    shared: [
        a_server_on_the_guests_loopback_answers_at_its_preview_url,
        a_port_that_is_not_exposed_is_not_reachable,
        a_websocket_echoes_through_the_preview_url,
        a_slow_answer_arrives_piece_by_piece,
    ],
    alone: [],
}

/// A WebSocket server in Python's standard library: sends back each text message of up to 125 bytes.
const WEBSOCKET_ECHO: &str = r#"
import base64, hashlib, socket, threading
def serve(peer):
    head = b""
    while b"\r\n\r\n" not in head:
        piece = peer.recv(4096)
        if not piece:
            return
        head += piece
    key = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    while True:
        frame = peer.recv(2, socket.MSG_WAITALL)
        if len(frame) < 2 or frame[0] & 15 == 8:
            return
        length = frame[1] & 127
        mask = peer.recv(4, socket.MSG_WAITALL)
        data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(peer.recv(length, socket.MSG_WAITALL)))
        peer.sendall(bytes([0x81, length]) + data)
server = socket.create_server(("127.0.0.1", 9000))
while True:
    threading.Thread(target=serve, args=[server.accept()[0]]).start()
"#;

async fn a_server_on_the_guests_loopback_answers_at_its_preview_url() {
    let host = Host::shared();
    let sandbox = exposing(&[ExposedPort::public(8000), ExposedPort::private(8001)]).await;
    sandbox.sh("mkdir site && echo 'hello from inside' > site/index.html").await;
    let url = host.client.port(&sandbox.id, 8000).await.unwrap().url;
    assert_eq!(host.client.http().get(&url).send().await.unwrap().status(), 502);

    for port in [8000, 8001] {
        let server = format!("exec python3 -m http.server {port} --bind 127.0.0.1 --directory site");
        sandbox.data_plane.start(&shell(&server, None)).await.unwrap();
        eventually("the server listens", || async {
            host.client.port(&sandbox.id, port).await.unwrap().status == "open"
        })
        .await;
    }

    let public = host.client.http().get(&url).send().await.unwrap();
    assert_eq!(public.status(), 200);
    assert_eq!(public.text().await.unwrap(), "hello from inside\n");

    let private = host.client.port(&sandbox.id, 8001).await.unwrap();
    assert!(!private.public);
    let without = host.client.http().get(&private.url).send().await.unwrap();
    let with = host.client.http().get(&private.url).bearer_auth(&sandbox.session.access_token).send().await.unwrap();
    assert_eq!((without.status().as_u16(), with.status().as_u16()), (401, 200));
}

async fn a_port_that_is_not_exposed_is_not_reachable() {
    let host = Host::shared();
    let sandbox = exposing(&[ExposedPort::public(8000)]).await;
    sandbox.data_plane.start(&shell("exec python3 -m http.server 8002 --bind 127.0.0.1", None)).await.unwrap();

    assert_eq!(host.client.port(&sandbox.id, 8002).await.unwrap_err().status(), Some(404));
    let url = host.client.port(&sandbox.id, 8000).await.unwrap().url.replace("p8000-", "p8002-");
    let answer = host.client.http().get(&url).bearer_auth(&sandbox.session.access_token).send().await.unwrap();
    assert_eq!(answer.status(), 404);
}

async fn a_websocket_echoes_through_the_preview_url() {
    let host = Host::shared();
    let sandbox = exposing(&[ExposedPort::public(9000)]).await;
    sandbox.data_plane.write_file("echo.py", WEBSOCKET_ECHO.as_bytes().to_vec(), None).await.unwrap();
    sandbox.data_plane.start(&shell("exec python3 echo.py", None)).await.unwrap();
    eventually("the server listens", || async { host.client.port(&sandbox.id, 9000).await.unwrap().status == "open" })
        .await;

    let url = host.client.port(&sandbox.id, 9000).await.unwrap().url.replacen("http", "ws", 1);
    let request = url.as_str().into_client_request().unwrap();
    let port = request.uri().port_u16().unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let echoes = async {
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        let mut echoed = Vec::new();
        for text in ["one", "two", "three"] {
            socket.send(Message::text(text)).await.unwrap();
            echoed.push(socket.next().await.unwrap().unwrap().into_text().unwrap().to_string());
        }
        echoed
    };
    let echoed = tokio::time::timeout(Duration::from_secs(60), echoes).await.expect("the echoes come");

    assert_eq!(echoed, ["one", "two", "three"]);
}

async fn a_slow_answer_arrives_piece_by_piece() {
    let host = Host::shared();
    let sandbox = exposing(&[ExposedPort::public(8000)]).await;
    let server = r#"
import http.server, os
class Drip(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        while not os.path.exists("/tmp/go"):
            pass
        self.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Drip).serve_forever()
"#;
    sandbox.data_plane.write_file("drip.py", server.as_bytes().to_vec(), None).await.unwrap();
    sandbox.data_plane.start(&shell("exec python3 drip.py", None)).await.unwrap();
    eventually("the server listens", || async { host.client.port(&sandbox.id, 8000).await.unwrap().status == "open" })
        .await;

    let url = host.client.port(&sandbox.id, 8000).await.unwrap().url;
    let mut answer = host.client.http().get(&url).send().await.unwrap();
    let first = answer.chunk().await.unwrap().unwrap();
    sandbox.sh("touch /tmp/go").await;
    let second = answer.chunk().await.unwrap().unwrap();

    assert_eq!((&first[..], &second[..]), (&b"first"[..], &b"second"[..]));
}

async fn exposing(ports: &[ExposedPort]) -> Sandbox {
    Host::shared().sandbox_with(&CreateSandbox { exposed_ports: ports.to_vec(), ..small() }).await
}
