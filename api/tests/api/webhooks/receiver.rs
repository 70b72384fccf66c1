//! A merchant's receiver on this machine, real TCP and TLS, which behaves as badly as a test wants.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// As on the wire: names in their case, in their order.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Received {
    /// The values of all headers of this name.
    pub(crate) fn headers(&self, name: &str) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let named = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim().to_owned()).collect()
    }

    /// The value of the one header of this name.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> String {
        let values = self.headers(name);
        assert_eq!(values.len(), 1, "{name} in {}", self.head);
        values[0].clone()
    }

    pub(crate) fn key(&self) -> String {
        self.header("idempotency-key")
    }
}

/// What is done with a request.
#[derive(Debug, Clone)]
pub(crate) enum Reaction {
    /// These bytes, after which the connection is kept.
    Bytes(Vec<u8>),
    /// These bytes, after which the connection is closed.
    Last(Vec<u8>),
    /// These bytes, then one after the other forever, with a pause after each.
    Drip(Vec<u8>, Duration),
    /// These bytes over and over again.
    Flood(Vec<u8>),
    /// Nothing, forever.
    Hang,
    /// The connection is reset.
    Reset,
}

impl Reaction {
    /// An answer without a body.
    pub(crate) fn status(status: u16) -> Self {
        Self::answer(status, "", "")
    }

    /// An answer with further lines in its head.
    pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        Reaction::Bytes(format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{body}").into_bytes())
    }
}

/// Before there is any request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeting {
    Tls,
    /// Takes the connection and says nothing.
    Silence,
    /// Resets the connection in the handshake.
    Reset,
    /// Speaks HTTP without TLS.
    Plain,
}

type Script = dyn Fn(&Received, usize) -> Reaction + Send + Sync;

/// The receiver, until this is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    /// Vouches for `127.0.0.1` and `merchant.example.test`.
    pub(crate) root: CertificateDer<'static>,
    /// The same, for a file.
    pub(crate) pem: String,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// A receiver that answers every request with this status.
    pub(crate) async fn answering(status: u16) -> Self {
        Self::scripted(move |_, _| Reaction::status(status)).await
    }

    /// One that does what `script` says: it gets the request and its number, from 0.
    pub(crate) async fn scripted(script: impl Fn(&Received, usize) -> Reaction + Send + Sync + 'static) -> Self {
        Self::start(Greeting::Tls, &["127.0.0.1", "merchant.example.test"], script).await
    }

    /// One that does not get as far as a request.
    pub(crate) async fn greeting(greeting: Greeting) -> Self {
        Self::start(greeting, &["127.0.0.1"], |_, _| Reaction::Hang).await
    }

    /// One whose certificate is for `names`.
    pub(crate) async fn start(
        greeting: Greeting,
        names: &[&str],
        script: impl Fn(&Received, usize) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let (root, pem, acceptor) = certificate(names);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (received, connections): (Arc<Mutex<Vec<_>>>, Arc<AtomicUsize>) = Default::default();
        let shared = Shared {
            greeting,
            acceptor,
            script: Arc::new(script),
            received: received.clone(),
            connections: connections.clone(),
        };
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(shared.clone().serve(stream));
            }
        });
        Self { address, root, pem, received, connections, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}/hooks?shop=1", self.address)
    }

    /// What came so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Shared {
    greeting: Greeting,
    acceptor: TlsAcceptor,
    script: Arc<Script>,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
}

impl Shared {
    async fn serve(self, mut stream: TcpStream) {
        match self.greeting {
            Greeting::Tls => {}
            Greeting::Silence => return std::future::pending().await,
            Greeting::Reset => return stream.set_zero_linger().unwrap(),
            Greeting::Plain => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                return std::future::pending().await;
            }
        }
        stream.set_nodelay(true).unwrap();
        let Ok(mut stream) = self.acceptor.accept(stream).await else { return };
        while let Some(request) = read(&mut stream).await {
            let number = {
                let mut received = self.received.lock().unwrap();
                received.push(request.clone());
                received.len() - 1
            };
            let reaction = (self.script)(&request, number);
            if react(reaction, &mut stream).await.is_err() {
                return;
            }
        }
    }
}

async fn react(reaction: Reaction, stream: &mut TlsStream<TcpStream>) -> std::io::Result<()> {
    match reaction {
        Reaction::Bytes(bytes) => stream.write_all(&bytes).await?,
        Reaction::Last(bytes) => {
            stream.write_all(&bytes).await?;
            stream.shutdown().await?;
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        Reaction::Drip(bytes, pause) => {
            stream.write_all(&bytes).await?;
            loop {
                stream.write_all(b".").await?;
                stream.flush().await?;
                tokio::time::sleep(pause).await;
            }
        }
        Reaction::Flood(bytes) => loop {
            stream.write_all(&bytes).await?;
        },
        Reaction::Hang => std::future::pending().await,
        Reaction::Reset => {
            stream.get_ref().0.set_zero_linger()?;
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
    }
    stream.flush().await
}

/// A request with its whole body; `None` when there is none any more.
async fn read(stream: &mut TlsStream<TcpStream>) -> Option<Received> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let mut body = bytes.split_off(end + 4);
    let request = Received { head: String::from_utf8(bytes).unwrap(), body: Vec::new() };
    let length: usize = request.header("content-length").parse().unwrap();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Received { body, ..request })
}

fn certificate(names: &[&str]) -> (CertificateDer<'static>, String, TlsAcceptor) {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let own = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .unwrap();
    (root.der().clone(), root.pem(), TlsAcceptor::from(Arc::new(config)))
}
