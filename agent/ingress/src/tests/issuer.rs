//! A small ACME issuer (RFC 8555): enough of one that a client which takes short cuts fails against it.
//!
//! It wants the right nonce, URL, key and signature in every request, believes in a name when its TXT record is in the
//! zone, which is a folder here, and signs with an authority of its own. What a test wants to see or to break is in
//! [`Issuer`].

use axum::body::Bytes as Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::header;
use axum::response::{IntoResponse, Response as Answer};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer as Signer, KeyPair};
use rustls::pki_types::{CertificateSigningRequestDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

use super::*;

/// The issuer, shared by its server and the test.
pub(super) struct Issuer {
    pub(super) url: String,
    /// PEM of the authority, which also vouches for the issuer's own server.
    pub(super) root: String,
    zone: PathBuf,
    signer: Signer<'static, KeyPair>,
    state: Mutex<Ledger>,
}

#[derive(Default)]
pub(super) struct Ledger {
    nonces: Vec<String>,
    /// The key of the one account that is made at most.
    account: Option<Value>,
    pub(super) orders: Vec<Order>,
    /// How old the next certificates are, of 90 days.
    pub(super) days_used: u64,
    /// Orders stay in processing as long as this holds.
    pub(super) slow: bool,
}

pub(super) struct Order {
    names: Vec<String>,
    believed: Vec<bool>,
    refused: bool,
    pub(super) certificate: Option<String>,
}

type Reply = Result<Answer, Problem>;

/// An error as ACME words it.
struct Problem(StatusCode, &'static str, String);

impl IntoResponse for Problem {
    fn into_response(self) -> Answer {
        let Problem(status, kind, detail) = self;
        let kind = format!("urn:ietf:params:acme:error:{kind}");
        (status, Json(json!({ "type": kind, "detail": detail }))).into_response()
    }
}

fn malformed(detail: impl Into<String>) -> Problem {
    Problem(StatusCode::BAD_REQUEST, "malformed", detail.into())
}

impl Issuer {
    /// An issuer that listens on this machine and looks for TXT records in the folder `zone`.
    pub(super) async fn start(zone: PathBuf) -> Arc<Issuer> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("an authority");
        let signer = Signer::new(params, key);
        let own_key = KeyPair::generate().expect("a key");
        let own = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let own = own.signed_by(&own_key, &signer).expect("a certificate");
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_no_client_auth()
                .with_single_cert(vec![own.der().clone()], PrivatePkcs8KeyDer::from(own_key.serialize_der()).into())
                .expect("a pair");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("https://localhost:{}", listener.local_addr().expect("bound").port());
        let issuer = Arc::new(Issuer { url, root: root.pem(), zone, signer, state: Mutex::default() });
        tokio::spawn(issuer.clone().serve(listener, TlsAcceptor::from(Arc::new(config))));
        issuer
    }

    pub(super) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.state.lock().expect("no panic under the lock")
    }

    async fn serve(self: Arc<Self>, listener: tokio::net::TcpListener, tls: TlsAcceptor) {
        let router = Router::new()
            .route("/directory", get(directory))
            .route("/nonce", get(async || StatusCode::OK))
            .route("/account", post(new_account))
            .route("/order", post(new_order))
            .route("/order/{order}", post(order))
            .route("/order/{order}/name/{name}", post(authorization))
            .route("/order/{order}/name/{name}/challenge", post(challenge))
            .route("/order/{order}/finalize", post(finalize))
            .route("/order/{order}/certificate", post(certificate))
            .layer(axum::middleware::map_response_with_state(self.clone(), fresh_nonce))
            .with_state(self);
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let (tls, router) = (tls.clone(), router.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = hyper_util::service::TowerToHyperService::new(router);
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    /// The payload of a request to `path` that was signed as RFC 8555 section 6 wants it.
    fn open(&self, path: &str, body: &[u8]) -> Result<Value, Problem> {
        let jws: Value = serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))?;
        let part = |name: &str| jws[name].as_str().ok_or_else(|| malformed(format!("no {name}")));
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|error| malformed(error.to_string()));
        let header: Value = serde_json::from_slice(&decode(part("protected")?)?).map_err(|_| malformed("no header"))?;
        if header["alg"] != "ES256" || header["url"] != format!("{}{path}", self.url) {
            return Err(malformed("another algorithm or URL"));
        }
        let mut ledger = self.ledger();
        let nonce = ledger.nonces.iter().position(|nonce| header["nonce"] == *nonce);
        let nonce = nonce.ok_or(Problem(StatusCode::BAD_REQUEST, "badNonce", "used or unknown".to_owned()))?;
        ledger.nonces.swap_remove(nonce);
        let key = match (&header["jwk"], &header["kid"]) {
            (jwk @ Value::Object(_), Value::Null) if path == "/account" => jwk.clone(),
            (Value::Null, kid) if *kid == format!("{}/account/1", self.url) => {
                ledger.account.clone().unwrap_or_default()
            }
            _ => return Err(malformed("no key that is known here")),
        };
        let text = format!("{}.{}", part("protected")?, part("payload")?);
        let (Some(x), Some(y)) = (key["x"].as_str(), key["y"].as_str()) else { return Err(malformed("no key")) };
        let point = [&[4][..], &decode(x)?, &decode(y)?].concat();
        let algorithm = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        let algorithm =
            algorithm.mapping.iter().find(|(scheme, _)| *scheme == rustls::SignatureScheme::ECDSA_NISTP256_SHA256);
        let verified = algorithm.expect("known").1[0].verify_signature(
            &point,
            text.as_bytes(),
            &der(&decode(part("signature")?)?),
        );
        verified.map_err(|_| malformed("a wrong signature"))?;
        if path == "/account" {
            ledger.account = Some(key);
        }
        let payload = decode(part("payload")?)?;
        Ok(if payload.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&payload).map_err(|_| malformed("no JSON"))?
        })
    }

    /// What the TXT record of a challenge must be.
    fn proof(&self, ledger: &Ledger, token: &str) -> String {
        let key = ledger.account.clone().unwrap_or_default();
        // RFC 7638: these members in this order.
        let canonical = format!(r#"{{"crv":{},"kty":{},"x":{},"y":{}}}"#, key["crv"], key["kty"], key["x"], key["y"]);
        let thumbprint = URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
        URL_SAFE_NO_PAD.encode(Sha256::digest(format!("{token}.{thumbprint}")))
    }

    fn is_published(&self, name: &str, value: &str) -> bool {
        let records = std::fs::read_to_string(self.zone.join(format!("_acme-challenge.{name}"))).unwrap_or_default();
        records.lines().any(|line| line == value)
    }

    fn order(&self, ledger: &Ledger, number: usize) -> Reply {
        let order =
            ledger.orders.get(number).ok_or(Problem(StatusCode::NOT_FOUND, "malformed", "no such order".to_owned()))?;
        let base = format!("{}/order/{number}", self.url);
        let status = match order {
            Order { refused: true, .. } => "invalid",
            Order { certificate: Some(_), .. } if ledger.slow => "processing",
            Order { certificate: Some(_), .. } => "valid",
            Order { believed, .. } if believed.iter().all(|believed| *believed) => "ready",
            Order { .. } => "pending",
        };
        let names: Vec<Value> = order.names.iter().map(|name| json!({ "type": "dns", "value": name })).collect();
        let authorizations: Vec<String> = (0..order.names.len()).map(|name| format!("{base}/name/{name}")).collect();
        let document = json!({
            "status": status, "identifiers": names, "authorizations": authorizations,
            "finalize": format!("{base}/finalize"), "certificate": format!("{base}/certificate"),
        });
        Ok(([(header::LOCATION, base)], Json(document)).into_response())
    }
}

/// ASN.1 of a signature that comes as two numbers of 32 bytes (RFC 7518 section 3.4).
fn der(signature: &[u8]) -> Vec<u8> {
    let integer = |bytes: &[u8]| {
        let digits: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
        let sign: &[u8] = if digits.first().is_none_or(|byte| *byte >= 0x80) { &[0] } else { &[] };
        let length = u8::try_from(sign.len() + digits.len()).expect("33 at most");
        [&[2, length], sign, &digits].concat()
    };
    let (r, s) = signature.split_at_checked(32).unwrap_or_default();
    let numbers = [integer(r), integer(s)].concat();
    [&[0x30, u8::try_from(numbers.len()).expect("short")], &numbers[..]].concat()
}

async fn fresh_nonce(State(issuer): State<Arc<Issuer>>, mut answer: Answer) -> Answer {
    let nonce = format!("{:032x}", rand::random::<u128>());
    answer.headers_mut().insert("replay-nonce", nonce.parse().expect("a value"));
    issuer.ledger().nonces.push(nonce);
    answer
}

async fn directory(State(issuer): State<Arc<Issuer>>) -> Json<Value> {
    let url = |path: &str| format!("{}{path}", issuer.url);
    Json(json!({ "newNonce": url("/nonce"), "newAccount": url("/account"), "newOrder": url("/order") }))
}

async fn new_account(State(issuer): State<Arc<Issuer>>, body: Body) -> Reply {
    let account = issuer.open("/account", &body)?;
    if account["termsOfServiceAgreed"] != true {
        return Err(malformed("the terms are not agreed to"));
    }
    let location = [(header::LOCATION, format!("{}/account/1", issuer.url))];
    Ok((StatusCode::CREATED, location, Json(json!({ "status": "valid" }))).into_response())
}

async fn new_order(State(issuer): State<Arc<Issuer>>, body: Body) -> Reply {
    let asked = issuer.open("/order", &body)?;
    let names: Vec<String> = asked["identifiers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| Some(name["value"].as_str()?.to_owned()))
        .collect();
    let mut ledger = issuer.ledger();
    let believed = vec![false; names.len()];
    ledger.orders.push(Order { names, believed, refused: false, certificate: None });
    issuer.order(&ledger, ledger.orders.len() - 1)
}

async fn order(State(issuer): State<Arc<Issuer>>, UrlPath(number): UrlPath<usize>, body: Body) -> Reply {
    issuer.open(&format!("/order/{number}"), &body)?;
    let ledger = issuer.ledger();
    issuer.order(&ledger, number)
}

async fn authorization(
    State(issuer): State<Arc<Issuer>>,
    UrlPath((number, name)): UrlPath<(usize, usize)>,
    body: Body,
) -> Reply {
    let path = format!("/order/{number}/name/{name}");
    issuer.open(&path, &body)?;
    let ledger = issuer.ledger();
    let order = &ledger.orders[number];
    let (plain, status) =
        (order.names[name].trim_start_matches("*."), if order.believed[name] { "valid" } else { "pending" });
    Ok(Json(json!({
        "status": status, "wildcard": order.names[name].starts_with("*."),
        "identifier": { "type": "dns", "value": plain },
        "challenges": [
            { "type": "http-01", "url": "https://localhost/never", "token": "x", "status": "pending" },
            { "type": "dns-01", "url": format!("{}{path}/challenge", issuer.url), "token": token(number, name), "status": status },
        ],
    }))
    .into_response())
}

fn token(order: usize, name: usize) -> String {
    format!("token-{order}-{name}")
}

async fn challenge(
    State(issuer): State<Arc<Issuer>>,
    UrlPath((number, name)): UrlPath<(usize, usize)>,
    body: Body,
) -> Reply {
    let path = format!("/order/{number}/name/{name}/challenge");
    issuer.open(&path, &body)?;
    let mut ledger = issuer.ledger();
    let proof = issuer.proof(&ledger, &token(number, name));
    let order = &mut ledger.orders[number];
    order.believed[name] = issuer.is_published(order.names[name].trim_start_matches("*."), &proof);
    order.refused |= !order.believed[name];
    let url = format!("{}{path}", issuer.url);
    Ok(Json(json!({ "type": "dns-01", "url": url, "token": token(number, name), "status": "processing" }))
        .into_response())
}

async fn finalize(State(issuer): State<Arc<Issuer>>, UrlPath(number): UrlPath<usize>, body: Body) -> Reply {
    let asked = issuer.open(&format!("/order/{number}/finalize"), &body)?;
    let request = URL_SAFE_NO_PAD.decode(asked["csr"].as_str().unwrap_or_default()).unwrap_or_default();
    let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request));
    let mut request = request.map_err(|error| malformed(error.to_string()))?;
    let mut ledger = issuer.ledger();
    let born = std::time::SystemTime::now() - Duration::from_secs(ledger.days_used * 86_400);
    request.params.not_before = born.into();
    request.params.not_after = (born + Duration::from_secs(90 * 86_400)).into();
    let signed = request.signed_by(&issuer.signer).map_err(|error| malformed(error.to_string()))?;
    ledger.orders[number].certificate = Some(format!("{}{}", signed.pem(), issuer.root));
    issuer.order(&ledger, number)
}

async fn certificate(State(issuer): State<Arc<Issuer>>, UrlPath(number): UrlPath<usize>, body: Body) -> Reply {
    issuer.open(&format!("/order/{number}/certificate"), &body)?;
    let chain = issuer.ledger().orders[number].certificate.clone().unwrap_or_default();
    Ok(([(header::CONTENT_TYPE, "application/pem-certificate-chain")], chain).into_response())
}
