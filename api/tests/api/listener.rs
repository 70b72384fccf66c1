//! The listener of the real process: TLS, HTTP/2, and who may call from a browser.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{Request, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::command::Server;
use crate::support::{Answer, Host, with_header};

/// A configuration with this at its end, and state beside it.
fn write_config(folder: &Path, rest: &str) -> PathBuf {
    let (config, state) = (folder.join("api.toml"), folder.join("state"));
    std::fs::write(&config, format!("listen = \"127.0.0.1:0\"\nstate_dir = {state:?}\n{rest}")).unwrap();
    config
}

/// A process with a certificate of its own for `localhost`, and that certificate.
fn with_tls(folder: &Path) -> (Server, PathBuf) {
    let (certificate, key) = (folder.join("api.pem"), folder.join("api.key"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let config = write_config(folder, &format!("tls = {{ certificate = {certificate:?}, key = {key:?} }}\n"));
    (Server::start(&config), certificate)
}

async fn connect(server: &Server, certificate: &Path, alpn: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let stream = TcpStream::connect(&server.address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// The health check over HTTP/2, of which several are asked for at once on one connection.
async fn healthy_over_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let answers = (0..8).map(|_| {
        let mut sender = sender.clone();
        async move {
            let request = Request::get("http://localhost/healthz").body(Empty::<Bytes>::new()).unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!((answer.version(), answer.status().as_u16()), (Version::HTTP_2, 200));
            assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
        }
    });
    futures_util::future::join_all(answers).await;
}

#[tokio::test]
async fn a_certificate_makes_it_https_over_either_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let (server, certificate) = with_tls(folder.path());

    let http2 = connect(&server, &certificate, &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(http2.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    healthy_over_http2(http2).await;

    let http1 = connect(&server, &certificate, &[]).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(http1)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/healthz").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), 200);

    // Nothing is said to those who do not begin a handshake.
    let plain = crate::command::send(&server.address, "GET", "/healthz", "", "");
    assert!(!plain.is_ok_and(|answer| answer.starts_with("HTTP/1.1")));
}

#[tokio::test]
async fn a_plain_listener_takes_http2_from_those_who_know() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&write_config(folder.path(), ""));

    healthy_over_http2(TcpStream::connect(&server.address).await.unwrap()).await;

    assert!(server.get("/healthz", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_certificate_that_cannot_be_read_is_named_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        write_config(folder.path(), "tls = { certificate = \"/nonexistent.pem\", key = \"/nonexistent.key\" }\n");

    let output = crate::command::run(&["serve", "--config", config.to_str().unwrap()]);

    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent.pem"), "{output:?}");
}

const CONSOLE: &str = "https://console.example.com";

/// What a browser asks before a page of `origin` may create a sandbox.
async fn preflight(host: &Host, origin: &'static str) -> Answer {
    let question = Request::options("/v1/sandboxes").body(axum::body::Body::empty()).unwrap();
    let question = with_header(question, "access-control-request-method", "POST");
    let question = with_header(question, "access-control-request-headers", "authorization,idempotency-key");
    host.send(with_header(question, "origin", origin)).await
}

#[tokio::test]
async fn pages_of_configured_origins_may_call_and_no_others() {
    let host = Host::with(|config| config.cors_origins = vec![CONSOLE.to_owned()]).await;

    let allowed = preflight(&host, CONSOLE).await;
    assert!(allowed.status.is_success());
    assert_eq!(allowed.header("access-control-allow-origin"), Some(CONSOLE));
    assert!(allowed.header("access-control-allow-methods").unwrap().contains("POST"));
    let headers = allowed.header("access-control-allow-headers").unwrap();
    assert!(headers.contains("authorization") && headers.contains("idempotency-key"), "{headers}");
    assert_eq!(allowed.header("access-control-allow-credentials"), None);
    assert_eq!(preflight(&host, "https://other.example.com").await.header("access-control-allow-origin"), None);

    // A refusal too can be read by the page.
    let request = Request::get("/v1/sandboxes").body(axum::body::Body::empty()).unwrap();
    let refused = host.send(with_header(request, "origin", CONSOLE)).await;
    assert_eq!(refused.header("access-control-allow-origin"), Some(CONSOLE));
    assert!(refused.header("access-control-expose-headers").unwrap().contains("x-request-id"));
    assert!(refused.header("vary").unwrap().contains("origin"));
    refused.refused(401, "unauthorized");
}

#[tokio::test]
async fn without_configured_origins_no_page_may_call() {
    let host = Host::new().await;
    assert_eq!(preflight(&host, CONSOLE).await.header("access-control-allow-origin"), None);
    preflight(&host, CONSOLE).await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn a_connection_goes_on_after_a_request_that_was_refused_before_its_body_came() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&write_config(folder.path(), ""));
    let mut stream = TcpStream::connect(&server.address).await.unwrap();
    let mut answer = async |request: &str| {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };

    let refused = answer("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n").await;
    let healthy = answer("{}GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;

    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert!(healthy.starts_with("HTTP/1.1 200"), "{healthy}");
}
