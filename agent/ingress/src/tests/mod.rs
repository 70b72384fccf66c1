//! The ingress from outside: real clients on one side, on the other a guest that speaks the monitor's socket protocol
//! and real HTTP. Only the directory is a table.

mod acme;
mod api;
mod doors;
mod e2b;
mod grpc;
mod hygiene;
mod issuer;
mod limits;
mod paused;
mod question;
mod reuse;
mod revocation;
mod smuggling;
mod streams;
mod tls;
mod tunnels;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandpiper_protocol::agent::{ExposedPort, PortProtocol, Previews, SandboxState};
use sandpiper_protocol::guest::{DATA_PLANE_PORT, FORWARD_PORT};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::session::Sessions;
use super::{Directory, Ingress, IngressConfig, Stats, Target, Urls, WakeError};

/// Bound of every wait; only reached when a test fails.
const SOON: Duration = Duration::from_secs(20);

const SANDBOX: &str = "sbx06aaaaaaaaaaaaaaaaaaaa";
const TOKEN: &str = "route0token1";
const HOST: &str = "route0token1.sandbox.localhost";
/// Exposed to everyone, and with a server.
const PUBLIC: &str = "p8000-route0token1.sandbox.localhost";
/// Exposed to holders of the token, and with a server.
const PRIVATE: &str = "p8001-route0token1.sandbox.localhost";
/// Exposed, but without a server.
const CLOSED: &str = "p8002-route0token1.sandbox.localhost";

type GuestStream = BufReader<UnixStream>;
/// What runs behind each connection: gets the port that was asked for.
type Application = Arc<dyn Fn(u32, GuestStream) -> BoxFuture<'static, ()> + Send + Sync>;
type GuestBody = UnsyncBoxBody<Bytes, io::Error>;

#[derive(Default)]
struct Table {
    targets: Mutex<HashMap<String, Target>>,
    /// What waking the sandbox comes to; without a word it is ready then.
    sleep: Mutex<Option<WakeError>>,
    woken: AtomicUsize,
    /// What happens whenever somebody looks a sandbox up.
    meanwhile: Mutex<Option<Meanwhile>>,
}

type Meanwhile = Box<dyn Fn(&mut Target) + Send>;

impl Directory for Table {
    async fn find(&self, name: &str) -> Option<Target> {
        let mut targets = self.targets.lock().expect("no panic under the lock");
        if let Some(meanwhile) = &*self.meanwhile.lock().expect("no panic under the lock") {
            targets.values_mut().for_each(meanwhile);
        }
        targets.get(name).or_else(|| targets.values().find(|target| target.sandbox_id == name)).cloned()
    }

    fn ids(&self) -> Vec<String> {
        let targets = self.targets.lock().expect("no panic under the lock");
        targets.values().map(|target| target.sandbox_id.clone()).collect()
    }

    async fn wake(&self, sandbox_id: &str) -> Result<(), WakeError> {
        assert_eq!(sandbox_id, SANDBOX);
        self.woken.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = *self.sleep.lock().expect("no panic under the lock") {
            return Err(error);
        }
        for target in self.targets.lock().expect("no panic under the lock").values_mut() {
            (target.state, target.wakes) = (SandboxState::Ready, false);
        }
        Ok(())
    }
}

/// A running ingress with one sandbox.
struct House {
    folder: tempfile::TempDir,
    table: Arc<Table>,
    sessions: Arc<Sessions>,
    address: SocketAddr,
    urls: Urls,
    stats: Arc<Stats>,
    ca: Option<PathBuf>,
    shutdown: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

impl House {
    /// Whose guest runs `application`.
    async fn new(application: Application) -> House {
        House::with(IngressConfig::default(), application).await
    }

    async fn with(config: IngressConfig, application: Application) -> House {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let vsock = folder.path().join("vsock");
        tokio::spawn(guest(UnixListener::bind(&vsock).expect("a socket"), application));
        let port = |port, public| ExposedPort { port, protocol: PortProtocol::Http, public };
        let target = Target {
            sandbox_id: SANDBOX.to_owned(),
            team_disabled: false,
            state: SandboxState::Ready,
            wakes: false,
            vsock,
            exposed_ports: vec![port(8000, true), port(8001, false), port(8002, true)],
            allow_public_traffic: true,
            previews: Previews::default(),
        };
        let table = Arc::new(Table::default());
        table.targets.lock().expect("no panic under the lock").insert(TOKEN.to_owned(), target);
        let sessions = Sessions::open(&folder.path().join("key"), Duration::from_secs(600)).expect("a key");
        let sessions = Arc::new(sessions);
        let config = IngressConfig { listen: "127.0.0.1:0".parse().expect("an address"), ..config };
        let ingress =
            Ingress::bind(&config, folder.path(), table.clone(), sessions.clone()).await.expect("a free port");
        let shutdown = CancellationToken::new();
        House {
            table,
            sessions,
            address: ingress.address(),
            urls: ingress.urls(),
            stats: ingress.stats(),
            ca: ingress.ca_certificate().map(Into::into),
            served: tokio::spawn(ingress.serve(shutdown.clone())),
            shutdown,
            folder,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Target)) {
        change(self.table.targets.lock().expect("no panic under the lock").get_mut(TOKEN).expect("there"));
    }

    fn token(&self) -> String {
        self.sessions.mint(SANDBOX, None).0
    }

    /// Sends a request on a connection of its own. Its target is as given: a path, so `Host` comes from `host`.
    async fn send<B>(&self, request: Request<B>) -> Response<Incoming>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("no data yet");
        tokio::spawn(connection.with_upgrades());
        soon(sender.send_request(request)).await.expect("a response")
    }

    /// A client of HTTP/2 that knows that the listener speaks it.
    async fn http2(&self) -> http2::SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("nothing to go wrong yet");
        tokio::spawn(connection);
        sender
    }

    /// GET with these header fields.
    async fn get(&self, host: &str, path: &str, headers: &[(&str, &str)]) -> (StatusCode, String) {
        let mut request = Request::get(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.send(request.body(Full::<Bytes>::default()).expect("valid")).await;
        (response.status(), text(response).await)
    }

    /// Sends these very bytes and reads until the connection ends.
    async fn raw(&self, bytes: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream.write_all(bytes.as_bytes()).await.expect("writable");
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.expect("readable");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.expect("in time")
}

async fn text(response: Response<Incoming>) -> String {
    let body = soon(response.into_body().collect()).await.expect("a complete body").to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

/// The monitor and the guest: vsock ports 49983 and the forwarder, which knows TCP ports 8000 and 8001.
async fn guest(listener: UnixListener, application: Application) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let application = application.clone();
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let Some(port) = line(&mut stream).await.and_then(|line| line.strip_prefix("CONNECT ")?.parse().ok())
            else {
                return;
            };
            stream.get_mut().write_all(b"OK 1073741824\n").await.expect("writable");
            if port == DATA_PLANE_PORT {
                return application(port, stream).await;
            }
            assert_eq!(port, FORWARD_PORT);
            let Some(port) = line(&mut stream).await.and_then(|line| line.parse().ok()) else { return };
            if matches!(port, 8000 | 8001) {
                stream.get_mut().write_all(b"ok\n").await.expect("writable");
                application(port, stream).await;
            } else {
                stream.get_mut().write_all(b"refused\n").await.expect("writable");
            }
        });
    }
}

async fn line(stream: &mut GuestStream) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.strip_suffix('\n').map(str::to_owned)
}

/// An application that owns its connections.
fn raw<F: Future<Output = ()> + Send + 'static>(
    run: impl Fn(u32, GuestStream) -> F + Send + Sync + 'static,
) -> Application {
    Arc::new(move |port, stream| Box::pin(run(port, stream)))
}

/// Reads the head of a request, answers these very bytes, and then waits for the proxy to end the connection, or ends it.
fn scripted(answer: impl Into<String>, end: bool) -> Application {
    let answer = answer.into();
    raw(move |_, mut stream| {
        let answer = answer.clone();
        async move {
            head(&mut stream).await;
            let _ = stream.get_mut().write_all(answer.as_bytes()).await;
            if !end {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        }
    })
}

/// The head of a request, as it comes.
async fn head(stream: &mut GuestStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.is_ok_and(|length| length > 0) {}
    head
}

/// An HTTP server.
fn http<F>(handle: impl Fn(u32, Request<Incoming>) -> F + Send + Sync + 'static) -> Application
where
    F: Future<Output = Response<GuestBody>> + Send + 'static,
{
    let handle = Arc::new(handle);
    raw(move |port, stream| {
        let handle = handle.clone();
        async move {
            let service = service_fn(move |request| {
                let answer = handle(port, request);
                async move { Ok::<_, io::Error>(answer.await) }
            });
            let server = hyper::server::conn::http1::Builder::new();
            // Ends with an error when the proxy closes early, which some tests provoke.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        }
    })
}

/// Answers with the head of the request, as the guest sees it.
fn mirror() -> Application {
    http(|port, request| async move {
        let mut seen = format!("{} {} on {port}\n", request.method(), request.uri());
        let mut fields: Vec<String> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        fields.sort();
        seen.extend(fields);
        Response::new(full(seen))
    })
}

fn full(text: impl Into<Bytes>) -> GuestBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is written through the channel; an error sent there breaks the connection off.
fn channel() -> (mpsc::Sender<io::Result<Bytes>>, GuestBody) {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(1);
    let frames = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece.map(Frame::data), receiver))
    });
    (sender, BodyExt::boxed_unsync(StreamBody::new(frames)))
}
