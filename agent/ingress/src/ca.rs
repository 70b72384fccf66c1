//! A certificate authority of this host's own, for development and closed networks.
//!
//! ```text
//!   <state_dir>/ca/<data_plane_host>.pem   the authority's certificate: what clients are told to trust
//!   <state_dir>/ca/<data_plane_host>.key   its key, mode 0600
//! ```
//!
//! The authority may only sign names below the data-plane host (X.509 name constraints): whoever trusts it trusts it for
//! nothing else. Certificates for the listener are made when needed and kept in memory.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sandpiper_durable::{self as durable, Access};

const DAY: Duration = Duration::from_secs(86_400);
/// Long, because every client has to be told of a new one.
const CA_LIFE: Duration = Duration::from_secs(20 * 365 * 86_400);
/// Some clients take no certificate that lives longer than about a year.
pub(super) const LEAF_LIFE: Duration = Duration::from_secs(90 * 86_400);

/// Why the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("Cannot write or read {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} and its key are damaged: delete both, and a new authority is made (clients must trust it anew)", path.display())]
    Damaged { path: PathBuf, source: rcgen::Error },
    #[error("{} cannot be read as a certificate", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("Cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

/// An authority for one data-plane host.
pub(super) struct LocalCa {
    host: String,
    path: PathBuf,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl LocalCa {
    /// Opens the authority of `host` below `state_dir`, making it when there is none. Blocks.
    pub(super) fn open(state_dir: &Path, host: &str) -> Result<LocalCa, CaError> {
        let folder = state_dir.join("ca");
        let path = folder.join(format!("{host}.pem"));
        let key_path = folder.join(format!("{host}.key"));
        if !path.exists() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&folder)
                .map_err(|source| CaError::Io { path: folder.clone(), source })?;
            let (certificate, key) = make_authority(host, SystemTime::now())?;
            // The key first: a certificate is only there when its key is.
            write(&key_path, Access::PRIVATE, key.as_bytes())?;
            write(&path, Access::READABLE, certificate.as_bytes())?;
        }
        let key = fs::read_to_string(&key_path).map_err(|source| CaError::Io { path: key_path.clone(), source })?;
        let pem = fs::read_to_string(&path).map_err(|source| CaError::Io { path: path.clone(), source })?;
        let damaged = |source| CaError::Damaged { path: path.clone(), source };
        let issuer = Issuer::from_ca_cert_pem(&pem, KeyPair::from_pem(&key).map_err(damaged)?).map_err(damaged)?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|source| CaError::Pem { path: path.clone(), source })?;
        Ok(LocalCa { host: host.to_owned(), path, certificate, issuer })
    }

    /// Where the authority's certificate is.
    pub(super) fn certificate(&self) -> &Path {
        &self.path
    }

    /// A new certificate for the host and all names one label below it, with its chain and key.
    pub(super) fn issue(
        &self,
        now: SystemTime,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CaError> {
        let mut params = CertificateParams::new([format!("*.{}", self.host), self.host.clone()])?;
        params.distinguished_name = name(&self.host);
        params.not_before = (now - DAY).into();
        params.not_after = (now + LEAF_LIFE).into();
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let leaf = params.signed_by(&key, &self.issuer)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Ok((vec![leaf.der().clone(), self.certificate.clone()], key.into()))
    }
}

/// PEM of a new authority's certificate and key.
fn make_authority(host: &str, now: SystemTime) -> Result<(String, String), CaError> {
    let mut params = CertificateParams::default();
    // The number keeps clients that remember an earlier authority from mixing the two up.
    params.distinguished_name = name(&format!("Sandpiper {host} {:08x}", rand::random::<u32>()));
    params.not_before = (now - DAY).into();
    params.not_after = (now + CA_LIFE).into();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(host.to_owned())],
        excluded_subtrees: Vec::new(),
    });
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // RFC 5280 allows 64 characters.
    name.push(DnType::CommonName, common.chars().take(64).collect::<String>());
    name
}

fn write(path: &Path, access: Access, bytes: &[u8]) -> Result<(), CaError> {
    durable::write_atomic_with(path, access, |file| file.write_all(bytes))
        .map_err(|source| CaError::Io { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_authority_is_made_once_and_its_key_is_private() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = LocalCa::open(folder.path(), "sandbox.localhost").expect("a new authority");
        let again = LocalCa::open(folder.path(), "sandbox.localhost").expect("the same authority");
        assert_eq!(first.certificate, again.certificate);
        let key = folder.path().join("ca/sandbox.localhost.key");
        assert_eq!(fs::metadata(key).expect("there").mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path().join("ca")).expect("readable").count(), 2, "no draft is left");
    }

    #[test]
    fn a_damaged_authority_is_reported_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        LocalCa::open(folder.path(), "a.example").expect("a new authority");
        fs::write(folder.path().join("ca/a.example.key"), "rubbish").expect("writable");
        let error = LocalCa::open(folder.path(), "a.example").err().expect("refused");
        assert!(error.to_string().contains("delete both"), "{error}");
    }
}
