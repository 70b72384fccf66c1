//! A client's connection, from its bytes to those that guests get: the listener's HTTP/1.1 and the proxy as they are.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_protocol::agent::{ExposedPort, PortProtocol, Previews, SandboxState};
use sandpiper_protocol::guest::{FORWARD_OK, FORWARD_PORT};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::TIMEOUT;
use crate::forwarded::TrustedProxies;
use crate::idle::IdleIo;
use crate::limits::InFlight;
use crate::listener::{Phases, serve_http1};
use crate::memory::Memory;
use crate::proxy::{Client, Held, Proxy};
use crate::session::Sessions;
use crate::{Directory, Target, WakeError};

/// Where the client connects from.
pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

const SANDBOXES: [&str; 2] = ["ann", "bob"];
/// Longer than anybody runs a target.
const TOKEN_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// On a clock that goes on only when nothing else does, this is until everybody waits.
const MOMENT: Duration = Duration::from_millis(1);
const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";

/// The proxy of the sandboxes `ann` and `bob` at `sandbox.localhost`. Each has a data plane and two preview ports: 8000 is
/// everybody's, 8001 takes the token. Guests answer every request with 204.
pub struct Ingress {
    proxy: Arc<Proxy<Sandboxes>>,
    guests: [UnixListener; 2],
}

/// What a guest got on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    pub sandbox: &'static str,
    /// None: its data plane.
    pub port: Option<u16>,
    pub bytes: Vec<u8>,
}

struct Sandboxes;

impl Directory for Sandboxes {
    async fn find(&self, route_token: &str) -> Option<Target> {
        let sandbox = SANDBOXES.into_iter().find(|sandbox| *sandbox == route_token)?;
        let port = |port, public| ExposedPort { port, protocol: PortProtocol::Http, public };
        Some(Target {
            sandbox_id: sandbox.to_owned(),
            team_disabled: false,
            state: SandboxState::Ready,
            wakes: false,
            vsock: socket(sandbox),
            exposed_ports: vec![port(8000, true), port(8001, false)],
            allow_public_traffic: true,
            previews: Previews::default(),
        })
    }

    fn ids(&self) -> Vec<String> {
        SANDBOXES.map(str::to_owned).into()
    }

    async fn wake(&self, _: &str) -> Result<(), WakeError> {
        Err(WakeError::Failed)
    }
}

/// An abstract address, which leaves no file behind.
fn socket(sandbox: &str) -> PathBuf {
    format!("\0sandpiper-fuzz-{}-{sandbox}", std::process::id()).into()
}

impl Ingress {
    /// To be made and used within one runtime.
    pub fn new() -> io::Result<Ingress> {
        let [ann, bob] = SANDBOXES.map(|sandbox| UnixListener::bind(socket(sandbox)));
        let proxy = Proxy {
            directory: Arc::new(Sandboxes),
            sessions: Arc::new(Sessions::new(&[7; 32], TOKEN_LIFE)),
            data_plane_host: "sandbox.localhost".to_owned(),
            api: None,
            scheme: "http",
            trusted: TrustedProxies::default(),
            idle_timeout: TIMEOUT,
            body_timeout: TIMEOUT,
            in_flight: InFlight::new(64, 64, Memory::new(16)),
            memory: Memory::new(16),
            pool: Arc::default(),
            stats: Arc::default(),
            stop: CancellationToken::new(),
        };
        Ok(Ingress { proxy: Arc::new(proxy), guests: [ann?, bob?] })
    }

    /// An access token of a sandbox.
    pub fn token(&self, sandbox: &str) -> String {
        self.proxy.sessions.mint(sandbox, None).0
    }

    /// Serves a client that sends these bytes, piece by piece, and then has nothing more to say. Guests answer what
    /// `is_complete` takes for a request. Returns the responses, and what guests got.
    pub async fn serve<'a>(
        &self,
        pieces: impl Iterator<Item = &'a [u8]>,
        is_complete: fn(&[u8]) -> bool,
    ) -> io::Result<(Vec<u8>, Vec<Passed>)> {
        let (near, mut far) = UnixStream::pair()?;
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().map_err(io::Error::other)?;
        let held = Held { _permit: permit, _place: None, _counted: self.proxy.stats.connection() };
        let client = Client { peer: CLIENT.into(), held: Arc::new(held) };
        let phases = Phases { finish: CancellationToken::new(), abort: CancellationToken::new() };
        let served = serve_http1(IdleIo::new(near, TIMEOUT), client, self.proxy.clone(), phases);

        let talk = async {
            for piece in pieces {
                // The proxy may have closed.
                if far.write_all(piece).await.is_err() {
                    break;
                }
                tokio::time::sleep(MOMENT).await;
            }
            let _ = far.shutdown().await;
            let mut answers = Vec::new();
            let _ = far.read_to_end(&mut answers).await;
            answers
        };
        let over = CancellationToken::new();
        let connection = async {
            let ((), answers) = tokio::join!(served, talk);
            over.cancel();
            answers
        };
        let guests = async {
            let mut passed = Vec::new();
            loop {
                let [ann, bob] = &self.guests;
                let (sandbox, accepted) = tokio::select! {
                    accepted = ann.accept() => (SANDBOXES[0], accepted),
                    accepted = bob.accept() => (SANDBOXES[1], accepted),
                    () = over.cancelled() => return io::Result::Ok(passed),
                };
                let (port, bytes) = hear(accepted?.0, is_complete).await?;
                passed.push(Passed { sandbox, port, bytes });
            }
        };
        let (answers, passed) = tokio::join!(connection, guests);
        Ok((answers, passed?))
    }
}

/// A guest's side of one connection: the port that is asked for, and all that comes.
async fn hear(stream: UnixStream, is_complete: fn(&[u8]) -> bool) -> io::Result<(Option<u16>, Vec<u8>)> {
    let mut stream = BufReader::new(stream);
    let (mut asked, mut port) = (String::new(), String::new());
    stream.read_line(&mut asked).await?;
    stream.write_all(b"OK 1\n").await?;
    if asked == format!("CONNECT {FORWARD_PORT}\n") {
        stream.read_line(&mut port).await?;
        stream.write_all(format!("{FORWARD_OK}\n").as_bytes()).await?;
    }
    let (mut bytes, mut answered) = (Vec::new(), false);
    // The proxy may leave without having read the response.
    while let Ok(1..) = stream.read_buf(&mut bytes).await {
        if !answered && is_complete(&bytes) {
            answered = true;
            let _ = stream.write_all(ANSWER).await;
        }
    }
    Ok((port.trim_end().parse().ok(), bytes))
}
