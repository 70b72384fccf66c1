//! Whose certificates are believed: the system's authorities, and where configured one more for development.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("Certificates in {path:?} cannot be read; the file must hold certificates in PEM")]
    File { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("The system's certificate authorities cannot be used; install the package ca-certificates")]
    System(#[source] rustls::Error),
    #[error("The certificate authority cannot be used")]
    Roots(#[source] rustls::Error),
}

/// The system's authorities, and those in `ca_file`.
pub fn system(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TrustError> {
    let extra = ca_file.map(read).transpose()?.unwrap_or_default();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Verifier::new_with_extra_roots(extra, provider.clone()).map_err(TrustError::System)?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(TrustError::System)?;
    // "Dangerous" is a verifier of one's own; this one is the system's.
    let config = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    Ok(finished(config))
}

/// These authorities alone.
pub fn only(roots: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Arc<ClientConfig>, TrustError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root).map_err(TrustError::Roots)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(TrustError::Roots)?;
    Ok(finished(builder.with_root_certificates(store).with_no_client_auth()))
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let error = |source| TrustError::File { path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(error)?.collect::<Result<Vec<_>, _>>().map_err(error)?;
    if found.is_empty() { Err(error(rustls::pki_types::pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn finished(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session is not verified again. Connections are reused instead.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        assert!(matches!(system(Some(&path)), Err(TrustError::File { .. })));
        std::fs::write(&path, "no certificate\n").unwrap();
        assert!(matches!(system(Some(&path)), Err(TrustError::File { .. })));
    }
}
