//! The receiver's sockets: accepting connections, TLS, and ending.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::receiver::Receiver;

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 512;
/// For a TLS handshake, and for a request's head, counted from the end of the request before: ends idle connections, too.
const HEAD: Duration = Duration::from_secs(60);
/// How long requests may go on after the signal to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// After an accept that failed, which for lack of descriptors it would do in a busy loop.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves HTTPS with the certificate and the key in these PEM files.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("Cannot read the certificate {}", certificate.display()))?;
    let private =
        PrivateKeyDer::from_pem_file(key).with_context(|| format!("Cannot read the key {}", key.display()))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("Cannot use {} with {}", certificate.display(), key.display()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until `stop`, then lets the requests under way finish.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    receiver: Arc<Receiver>,
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    tokio::pin!(stop);
    loop {
        let accept = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
            accepted = accept => match accepted {
                (permit, Ok((stream, _))) => (permit, stream),
                (_, Err(error)) => {
                    eprintln!("A connection was not accepted: {error}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let (tls, receiver, watcher) = (tls.clone(), receiver.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _permit = permit;
            match tls {
                None => connection(stream, receiver, watcher).await,
                // Who does not finish the handshake sent nothing that could be lost.
                Some(tls) => {
                    if let Ok(Ok(stream)) = tokio::time::timeout(HEAD, tls.accept(stream)).await {
                        connection(stream, receiver, watcher).await;
                    }
                }
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        eprintln!("Connections were still open at the end");
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    receiver: Arc<Receiver>,
    watcher: Watcher,
) {
    let service = service_fn(move |request| receiver.clone().respond(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // How a connection ends is the sender's business: what got a response is on the disk, what did not comes again.
    let _ = watcher.watch(connection).await;
}
