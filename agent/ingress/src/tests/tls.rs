//! TLS with a local authority and with given files.

use std::path::Path;

use hyper_util::rt::TokioExecutor;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sandpiper_protocol::error_chain;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::Tls;

fn local_ca() -> IngressConfig {
    IngressConfig { tls: Tls::LocalCa, public_port: Some(443), ..Default::default() }
}

pub(super) async fn handshake(
    house: &House,
    ca: &Path,
    name: &str,
    alpn: &[&[u8]],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("PEM")).expect("a certificate");
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = TcpStream::connect(house.address).await.expect("connected");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    soon(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

#[tokio::test]
async fn http2_with_the_local_authority() {
    let house = House::with(local_ca(), mirror()).await;
    let ca = house.ca.clone().expect("an authority");
    assert_eq!(house.urls.data_plane_url(TOKEN), format!("https://{HOST}"));

    let stream = handshake(&house, &ca, PUBLIC, &[b"h2", b"http/1.1"]).await.expect("trusted");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let get = |host: &str| {
        let request = Request::get(format!("https://{host}/path?q")).header("cookie", "a=1").header("cookie", "b=2");
        request.body(Full::<Bytes>::default()).expect("valid")
    };

    let seen = text(soon(sender.send_request(get(PUBLIC))).await.expect("a response")).await;
    assert!(seen.starts_with("GET /path?q on 8000\n"), "{seen}");
    assert!(seen.contains(&format!("host: {PUBLIC}\n")) && seen.contains("x-forwarded-proto: https\n"), "{seen}");
    assert!(seen.contains("cookie: a=1; b=2\n"), "{seen}");
    // The same connection, another sandbox's name: each request is judged for itself.
    assert_eq!(soon(sender.send_request(get(PRIVATE))).await.expect("a response").status(), 401);
    assert_eq!(soon(sender.send_request(get("nosuch.sandbox.localhost"))).await.expect("a response").status(), 502);

    let large = Bytes::from(vec![b'x'; 3 << 20]);
    let post = Request::post(format!("https://{PUBLIC}/upload")).body(Full::new(large)).expect("valid");
    assert_eq!(soon(sender.send_request(post)).await.expect("a response").status(), 200);
}

#[tokio::test]
async fn a_guest_that_breaks_off_resets_the_http2_stream() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n";
    let house = House::with(local_ca(), scripted(answer, true)).await;
    let ca = house.ca.clone().expect("an authority");
    let stream = handshake(&house, &ca, PUBLIC, &[b"h2"]).await.expect("trusted");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::get(format!("https://{PUBLIC}/")).body(Full::<Bytes>::default()).expect("valid");
    let response = soon(sender.send_request(request)).await.expect("a response");
    soon(response.into_body().collect()).await.expect_err("no clean end");
}

#[tokio::test]
async fn http1_where_the_client_does_not_offer_http2() {
    let house = House::with(local_ca(), mirror()).await;
    let ca = house.ca.clone().expect("an authority");
    for alpn in [&[][..], &[&b"http/1.1"[..]][..]] {
        let mut stream = handshake(&house, &ca, PUBLIC, alpn).await.expect("trusted");
        let request = format!("GET / HTTP/1.1\r\nHost: {PUBLIC}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("writable");
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.expect("a clean end");
        assert!(answer.contains("GET / on 8000"), "{answer}");
    }
}

#[tokio::test]
async fn the_certificate_is_for_our_names_only() {
    let house = House::with(local_ca(), mirror()).await;
    let ca = house.ca.clone().expect("an authority");
    handshake(&house, &ca, "sandbox.localhost", &[]).await.expect("the host itself");
    handshake(&house, &ca, "example.com", &[]).await.expect_err("not ours");
}

#[tokio::test]
async fn given_certificates_are_served() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    write_self_signed(&certificate, &key);
    let tls = Tls::Files { certificate: certificate.clone(), key };
    let house = House::with(IngressConfig { tls, ..Default::default() }, mirror()).await;
    handshake(&house, &certificate, PUBLIC, &[b"h2"]).await.expect("trusted");
    assert_eq!(house.ca, None);
    assert_eq!(house.urls.port_url(TOKEN, 8000), format!("https://{PUBLIC}:{}", house.address.port()));
}

#[tokio::test]
async fn unusable_certificates_are_reported_at_the_start() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    write_self_signed(&certificate, &key);
    write_self_signed(&folder.path().join("other.pem"), &key);
    let config = IngressConfig {
        listen: "127.0.0.1:0".parse().expect("an address"),
        tls: Tls::Files { certificate, key: key.clone() },
        ..Default::default()
    };
    let sessions = Arc::new(Sessions::open(&folder.path().join("session.key"), SOON).expect("a key"));
    let error = Ingress::bind(&config, folder.path(), Arc::new(Table::default()), sessions).await.err();
    let error = error_chain::chain(&error.expect("the key belongs to the other certificate"));
    assert!(error.contains("cannot be used together"), "{error}");
}

fn write_self_signed(certificate: &Path, key: &Path) {
    let pair = KeyPair::generate().expect("a key");
    let names = ["*.sandbox.localhost".to_owned()];
    let signed = CertificateParams::new(names).expect("names").self_signed(&pair).expect("a certificate");
    std::fs::write(certificate, signed.pem()).expect("writable");
    std::fs::write(key, pair.serialize_pem()).expect("writable");
}
