//! Certificates of the listener: given ones, those of an ACME issuer, or those of a local authority.
//!
//! All may change while the agent runs: files are read again when they changed (whatever renews them, be it
//! [`super::acme`], only has to replace them), a local certificate is made anew before it expires. A new certificate that
//! cannot be used changes nothing. Until an issuer has issued the first one, no handshake succeeds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sandpiper_protocol::error_chain;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use super::acme::{self, Acme};
use super::ca::{CaError, LEAF_LIFE, LocalCa};
use super::config::Tls;

/// HTTP/2, as a TLS handshake names it.
pub const ALPN_H2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// How often the certificate is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Why there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("Cannot read the certificate or key {}", path.display())]
    Read { path: PathBuf, source: pem::Error },
    #[error("{} holds no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("The certificate {} and the key {} cannot be used together", certificate.display(), key.display())]
    Unusable { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("Cannot look at {}", path.display())]
    Inspect { path: PathBuf, source: io::Error },
    #[error("The local certificate authority cannot be used")]
    Ca(#[from] CaError),
    #[error("The TLS library refused its configuration")]
    Library(#[from] rustls::Error),
}

/// The certificate of a listener, and what keeps it fresh.
pub struct ListenerTls {
    certificates: Arc<Certificates>,
    acme: Option<Acme>,
}

impl ListenerTls {
    /// Loads, makes or awaits the certificate that `tls` asks for, for `host` and everything one label below it; `None` where
    /// TLS is off. What is made or ordered is kept under `state_dir`. Blocks.
    pub fn open(tls: &Tls, state_dir: &Path, host: &str) -> Result<Option<ListenerTls>, TlsError> {
        let Some(certificates) = Certificates::open(tls, state_dir, host)? else { return Ok(None) };
        let acme = match tls {
            Tls::Acme(acme) => Some(Acme::new(acme.clone(), state_dir, host)),
            Tls::Off | Tls::LocalCa | Tls::Files { .. } => None,
        };
        Ok(Some(ListenerTls { certificates, acme }))
    }

    /// Accepts connections with whatever certificate is current then.
    pub fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        self.certificates.acceptor()
    }

    /// The local authority's certificate, for clients to trust.
    pub fn ca_certificate(&self) -> Option<&Path> {
        self.certificates.ca_certificate()
    }

    /// Looks for a new certificate, and orders one where that is asked for, for ever.
    pub async fn keep_fresh(self) {
        let ordering = async {
            match self.acme {
                Some(acme) => acme.run(self.certificates.clone()).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(ordering, self.certificates.clone().keep_fresh());
    }
}

/// The current certificate, and where the next one comes from.
pub(super) struct Certificates {
    source: Source,
    provider: Arc<CryptoProvider>,
    /// `None` while the first one is awaited.
    current: RwLock<Option<Current>>,
}

enum Source {
    Files {
        certificate: PathBuf,
        key: PathBuf,
        /// They need not be there yet.
        awaited: bool,
    },
    Local(Box<LocalCa>),
}

#[derive(Clone)]
struct Current {
    key: Arc<CertifiedKey>,
    /// What the certificate was made of, or when: a different value now means that it is time for another.
    origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Files { certificate: SystemTime, key: SystemTime },
    Issued(SystemTime),
}

impl Certificates {
    /// Loads or makes the certificate that `tls` asks for, for `host` and everything one label below it. Blocks.
    pub(super) fn open(tls: &Tls, state_dir: &Path, host: &str) -> Result<Option<Arc<Certificates>>, TlsError> {
        let source = match tls {
            Tls::Off => return Ok(None),
            Tls::LocalCa => Source::Local(Box::new(LocalCa::open(state_dir, host)?)),
            Tls::Files { certificate, key } => {
                Source::Files { certificate: certificate.clone(), key: key.clone(), awaited: false }
            }
            Tls::Acme(_) => {
                let bundle = acme::bundle(state_dir, host);
                Source::Files { certificate: bundle.clone(), key: bundle, awaited: true }
            }
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let current = match source.load(&provider) {
            Ok(current) => Some(current),
            Err(error) if source.is_awaited() => {
                warn!(error = %error_chain::chain(&error), "There is no certificate yet; one is ordered");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Some(Arc::new(Certificates { source, provider, current: RwLock::new(current) })))
    }

    /// Accepts connections with whatever certificate is current then.
    pub(super) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, TlsError> {
        let resolver: Arc<dyn ResolvesServerCert> = Arc::new(Resolver(self.clone()));
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// The local authority's certificate, for clients to trust.
    pub(super) fn ca_certificate(&self) -> Option<&Path> {
        match &self.source {
            Source::Local(ca) => Some(ca.certificate()),
            Source::Files { .. } => None,
        }
    }

    /// Looks at the certificate from time to time, for ever.
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.clone().look_now().await;
        }
    }

    /// Looks at the certificate, and takes a new one if there is one.
    pub(super) async fn look_now(self: Arc<Self>) {
        // Reads files.
        let _ = tokio::task::spawn_blocking(move || self.refresh(SystemTime::now())).await;
    }

    /// Replaces the certificate when it is time. Blocks.
    fn refresh(&self, now: SystemTime) {
        let result = match self.current() {
            Some(current) => match self.source.is_due(&current.origin, now) {
                Ok(false) => return,
                Ok(true) => self.source.load(&self.provider),
                Err(error) => Err(error),
            },
            None => self.source.load(&self.provider),
        };
        match result {
            Ok(next) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(next);
                info!("Serving with a new certificate");
            }
            // Whoever orders it says why it is late.
            Err(_) if self.current().is_none() => {}
            Err(error) => {
                warn!(error = %error_chain::chain(&error), "The certificate was not renewed; the previous one stays in use");
            }
        }
    }

    fn current(&self) -> Option<Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Source {
    fn is_awaited(&self) -> bool {
        matches!(self, Source::Files { awaited: true, .. })
    }

    fn load(&self, provider: &CryptoProvider) -> Result<Current, TlsError> {
        match self {
            Source::Files { certificate, key, .. } => {
                // Taken before reading: a file that changes meanwhile is read again next time.
                let origin = self.files_origin(certificate, key)?;
                let chain = read_chain(certificate)?;
                let secret =
                    PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Read { path: key.clone(), source })?;
                let unusable =
                    |source| TlsError::Unusable { certificate: certificate.clone(), key: key.clone(), source };
                let key = CertifiedKey::from_der(chain, secret, provider).map_err(unusable)?;
                Ok(Current { key: Arc::new(key), origin })
            }
            Source::Local(ca) => {
                let now = SystemTime::now();
                let (chain, secret) = ca.issue(now)?;
                let key = CertifiedKey::from_der(chain, secret, provider)?;
                Ok(Current { key: Arc::new(key), origin: Origin::Issued(now) })
            }
        }
    }

    /// Whether another certificate than the one of `origin` should be served at `now`.
    fn is_due(&self, origin: &Origin, now: SystemTime) -> Result<bool, TlsError> {
        match (self, origin) {
            (Source::Files { certificate, key, .. }, origin) => Ok(self.files_origin(certificate, key)? != *origin),
            // With a third of its life left. A clock that was set back makes no certificate late.
            (Source::Local(_), Origin::Issued(at)) => {
                Ok(now.duration_since(*at).unwrap_or_default() > LEAF_LIFE / 3 * 2)
            }
            (Source::Local(_), Origin::Files { .. }) => Ok(true),
        }
    }

    fn files_origin(&self, certificate: &Path, key: &Path) -> Result<Origin, TlsError> {
        let modified = |path: &Path| {
            std::fs::metadata(path)
                .and_then(|metadata| metadata.modified())
                .map_err(|source| TlsError::Inspect { path: path.to_path_buf(), source })
        };
        Ok(Origin::Files { certificate: modified(certificate)?, key: modified(key)? })
    }
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_path_buf(), source };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Read { path: path.to_path_buf(), source })?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_path_buf() });
    }
    Ok(chain)
}

/// Serves the current certificate to everyone: all names are below one wildcard.
struct Resolver(Arc<Certificates>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current()?.key)
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    fn served(certificates: &Certificates) -> Vec<CertificateDer<'static>> {
        certificates.current().expect("a certificate").key.cert.clone()
    }

    /// Puts a new pair into the folder, dated `age` ago.
    fn put_pair(folder: &Path, age: Duration) {
        let pair = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["*.a.example".to_owned()]).expect("a name");
        let certificate = params.self_signed(&pair).expect("a certificate");
        for (name, text) in [("cert.pem", certificate.pem()), ("key.pem", pair.serialize_pem())] {
            let path = folder.join(name);
            fs::write(&path, text).expect("writable");
            File::options().write(true).open(&path).expect("there").set_modified(SystemTime::now() - age).expect("set");
        }
    }

    #[test]
    fn given_files_are_read_again_when_they_change() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        put_pair(folder.path(), 2 * CHECK_INTERVAL);
        let tls = Tls::Files { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
        let certificates = Certificates::open(&tls, folder.path(), "a.example").expect("usable").expect("TLS is on");
        let first = served(&certificates);

        certificates.refresh(SystemTime::now());
        assert_eq!(served(&certificates), first, "nothing changed");
        put_pair(folder.path(), CHECK_INTERVAL);
        certificates.refresh(SystemTime::now());
        let second = served(&certificates);
        assert_ne!(second, first);
        fs::write(folder.path().join("key.pem"), "half a ke").expect("writable");
        certificates.refresh(SystemTime::now());
        assert_eq!(served(&certificates), second, "the old one stays");
    }

    #[test]
    fn a_local_certificate_is_renewed_in_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let certificates =
            Certificates::open(&Tls::LocalCa, folder.path(), "a.example").expect("usable").expect("TLS is on");
        let first = served(&certificates);

        certificates.refresh(SystemTime::now() + LEAF_LIFE / 2);
        assert_eq!(served(&certificates), first, "still good for long");
        certificates.refresh(SystemTime::now() + LEAF_LIFE / 4 * 3);
        let second = served(&certificates);
        assert_ne!(second[0], first[0]);
        assert_eq!(second[1], first[1], "of the same authority");
    }
}
