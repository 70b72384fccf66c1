//! Servers of the world: a name server on the host's loopback, and HTTP and TLS servers that tell who they are.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME, TXT};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sandpiper_network::netns::Netns;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub(crate) struct Internet {
    netns: Netns,
    pub(crate) dns: Dns,
}

impl Internet {
    pub(crate) async fn start(netns: Netns) -> Self {
        Self { netns, dns: Dns::start().await }
    }

    pub(crate) fn listen(&self, address: &str) -> TcpListener {
        let address: SocketAddr = address.parse().unwrap();
        let listener = self.netns.run(|| std::net::TcpListener::bind(address)).unwrap();
        listener.set_nonblocking(true).unwrap();
        TcpListener::from_std(listener).unwrap()
    }

    /// An HTTP server whose answers tell its name and what it was asked.
    pub(crate) fn http(&self, address: &str, server: &'static str) {
        let listener = self.listen(address);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service_fn(move |request| tell(server, request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                tokio::spawn(connection);
            }
        });
    }

    /// A TLS server that greets with its name and then echoes. Its certificate, which is good for these names.
    pub(crate) fn tls(&self, address: &str, server: &'static str, names: &[&str]) -> CertificateDer<'static> {
        let listener = self.listen(address);
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let _ = stream.write_all(format!("{server}\n").as_bytes()).await;
                    let _ = stream.flush().await;
                    let mut buffer = [0; 1024];
                    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                        let _ = stream.write_all(&buffer[..length]).await;
                        let _ = stream.flush().await;
                    }
                    let _ = stream.shutdown().await;
                });
            }
        });
        certificate
    }
}

pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Answers with what was asked, or becomes an echo if an upgrade was.
async fn tell(server: &'static str, mut request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let header = |name: &str| {
        let values: Vec<_> = request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        values.join("|")
    };
    let (host, upgrade) = (header("host"), header("upgrade"));
    if !upgrade.is_empty() {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        });
        let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", upgrade);
        return Ok(response.body(Full::default()).unwrap());
    }
    let line = format!("{} {}", request.method(), request.uri());
    let body = request.into_body().collect().await?.to_bytes();
    let told = format!("[{server}] {line} host={host} body={}\n", String::from_utf8_lossy(&body));
    Ok(Response::new(told.into()))
}

/// A name server. It knows what tests tell it.
pub(crate) struct Dns {
    pub(crate) address: SocketAddr,
    zone: Arc<Zone>,
}

struct Zone {
    records: Mutex<HashMap<(Name, RecordType), Vec<Record>>>,
    asked: AtomicUsize,
    /// For each, one answer about a name that begins with `held` is let go.
    released: Semaphore,
}

impl Dns {
    async fn start() -> Self {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(address).await.unwrap();
        let zone =
            Arc::new(Zone { records: Mutex::default(), asked: AtomicUsize::new(0), released: Semaphore::new(0) });
        tokio::spawn(by_udp(zone.clone(), udp.into()));
        tokio::spawn(by_tcp(zone.clone(), tcp));
        Self { address, zone }
    }

    /// Makes these the name's addresses, in place of what it had.
    pub(crate) fn addresses(&self, name: &str, ttl: u32, addresses: &[&str]) {
        let name = dns_name(name);
        let mut of_kind = HashMap::from([(RecordType::A, Vec::new()), (RecordType::AAAA, Vec::new())]);
        for address in addresses {
            let data = match address.parse().unwrap() {
                IpAddr::V4(address) => RData::A(A(address)),
                IpAddr::V6(address) => RData::AAAA(AAAA(address)),
            };
            of_kind.entry(data.record_type()).or_default().push(Record::from_rdata(name.clone(), ttl, data));
        }
        let mut records = self.zone.records.lock().unwrap();
        records.extend(of_kind.into_iter().map(|(kind, of_kind)| ((name.clone(), kind), of_kind)));
    }

    /// Makes a name another one's alias, for questions about addresses.
    pub(crate) fn alias(&self, name: &str, of: &str) {
        let (name, of) = (dns_name(name), dns_name(of));
        let mut records = self.zone.records.lock().unwrap();
        for kind in [RecordType::A, RecordType::AAAA] {
            let mut chain = vec![Record::from_rdata(name.clone(), 300, RData::CNAME(CNAME(of.clone())))];
            chain.extend(records.get(&(of.clone(), kind)).cloned().unwrap_or_default());
            records.insert((name.clone(), kind), chain);
        }
    }

    pub(crate) fn text(&self, name: &str, text: &str) {
        let parts = text.as_bytes().chunks(200).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        self.record(name, RData::TXT(TXT::new(parts)));
    }

    pub(crate) fn record(&self, name: &str, data: RData) {
        let name = dns_name(name);
        let key = (name.clone(), data.record_type());
        self.zone.records.lock().unwrap().entry(key).or_default().push(Record::from_rdata(name, 300, data));
    }

    /// Lets an answer about a name that begins with `held` go.
    pub(crate) fn release(&self) {
        self.zone.released.add_permits(1);
    }

    /// How many questions there were.
    pub(crate) fn asked(&self) -> usize {
        self.zone.asked.load(Ordering::Relaxed)
    }
}

pub(crate) fn dns_name(name: &str) -> Name {
    Name::from_ascii(format!("{name}.")).unwrap()
}

impl Zone {
    /// None for names that begin with `silent`.
    fn answer(&self, query: &[u8]) -> Option<Message> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let query = Message::from_vec(query).ok()?;
        let question = query.queries.first()?.clone();
        if question.name().to_ascii().starts_with("silent") {
            return None;
        }
        let mut reply = Message::response(query.id, query.op_code);
        reply.metadata.recursion_available = true;
        let records = self.records.lock().unwrap();
        match records.get(&(question.name().to_lowercase(), question.query_type())) {
            Some(found) => reply.answers = found.clone(),
            None => reply.metadata.response_code = ResponseCode::NXDomain,
        }
        reply.add_query(question);
        Some(reply)
    }
}

async fn by_udp(zone: Arc<Zone>, socket: Arc<UdpSocket>) {
    let mut buffer = [0; 4096];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        let Some(reply) = zone.answer(&buffer[..length]) else { continue };
        let bytes = reply.to_vec().unwrap();
        let bytes = if bytes.len() > 1232 { reply.truncate().to_vec().unwrap() } else { bytes };
        let (zone, socket) = (zone.clone(), socket.clone());
        tokio::spawn(async move {
            if reply.queries[0].name().to_ascii().starts_with("held") {
                zone.released.acquire().await.unwrap().forget();
            }
            let _ = socket.send_to(&bytes, from).await;
        });
    }
}

async fn by_tcp(zone: Arc<Zone>, listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let zone = zone.clone();
        tokio::spawn(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut query = vec![0; length.into()];
                let _ = stream.read_exact(&mut query).await;
                let Some(reply) = zone.answer(&query) else { continue };
                let bytes = reply.to_vec().unwrap();
                let _ = stream.write_u16(bytes.len().try_into().unwrap()).await;
                let _ = stream.write_all(&bytes).await;
            }
        });
    }
}
