//! A receiver of webhooks, of any number of merchants: TLS, and an answer at once, unless one of them is to hang.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::http1::{head_end, header};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// When the first byte of each delivery came, by `Idempotency-Key`.
type Arrivals = Arc<Mutex<HashMap<String, Instant>>>;

/// Serves until the runtime ends where it was started.
pub struct Receiver {
    address: SocketAddr,
    /// Its certificate, which vouches for itself, in PEM.
    pub certificate: String,
    arrivals: Arrivals,
    hanging: watch::Sender<Option<usize>>,
}

impl Receiver {
    /// Listens on a port of its own.
    ///
    /// # Errors
    /// Where it cannot listen, or has no certificate.
    pub async fn start() -> anyhow::Result<Self> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (hanging, hangs) = watch::channel(None);
        let arrivals = Arrivals::default();
        let kept = arrivals.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A sender that leaves ends its connection only.
                tokio::spawn(connection(stream, acceptor.clone(), kept.clone(), hangs.clone()));
            }
        });
        Ok(Self { address, certificate: cert.pem(), arrivals, hanging })
    }

    /// Where the webhooks of a merchant go.
    pub fn url(&self, merchant: usize) -> String {
        format!("https://{}/{merchant}", self.address)
    }

    /// From now on this merchant, if any, gets no answers; what was held back of others is answered.
    pub fn hang(&self, merchant: Option<usize>) {
        self.hanging.send_replace(merchant);
    }

    /// Every delivery that has come.
    pub fn deliveries(&self) -> HashSet<String> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// When the first byte of a delivery came, if it did.
    pub fn arrival(&self, delivery: &str) -> Option<Instant> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).get(delivery).copied()
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    arrivals: Arrivals,
    mut hangs: watch::Receiver<Option<usize>>,
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let mut bytes = Vec::with_capacity(4096);
    loop {
        bytes.clear();
        let mut first = None;
        let end = loop {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            first.get_or_insert_with(Instant::now);
            if let Some(end) = head_end(&bytes) {
                break end;
            }
        };
        let head = std::str::from_utf8(&bytes[..end])?;
        let length: usize = header(head, "content-length").context("no length")?.parse()?;
        let delivery = header(head, "idempotency-key").context("no Idempotency-Key")?.to_owned();
        let merchant = head.split([' ', '/']).nth(2).context("no path")?.parse().ok();
        while bytes.len() < end + length {
            anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "the connection ended in the middle of a webhook");
        }
        if let Some(first) = first {
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).entry(delivery).or_insert(first);
        }
        hangs.wait_for(|hanging| hanging.is_none() || *hanging != merchant).await?;
        stream.write_all(ANSWER).await?;
        stream.flush().await?;
    }
}
