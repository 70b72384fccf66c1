//! `[oidc]`: at which provider people sign in, and which of them may enter.

use std::io;
use std::path::{Path, PathBuf};

use openidconnect::ClientSecret;
use sandpiper_db::private_files;
use serde::Deserialize;
use url::{Host, Url};
use zeroize::Zeroizing;

/// Longest name of a provider, in bytes.
const MAX_NAME: usize = 40;

/// The section.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What the provider calls itself, letter by letter; `/.well-known/openid-configuration` is below it.
    pub issuer: String,
    /// What the provider calls this host.
    pub client_id: String,
    /// Holds the secret of a confidential client, for this process's user alone; without it, the client is a public one.
    pub client_secret_file: Option<PathBuf>,
    /// Where browsers reach the dashboard: `https://sandpiper.example.com`.
    pub origin: String,
    /// What people call the provider.
    pub name: String,
    /// Asked for besides `openid`.
    #[serde(default = "scopes")]
    pub scopes: Vec<String>,
    /// Whether whoever the provider knows gets an account; otherwise one needs an account or an invitation.
    #[serde(default)]
    pub sign_up: bool,
    /// Domains of e-mail addresses that may be linked to accounts; empty: all.
    #[serde(default)]
    pub allowed_domains: Vec<String>,
}

fn scopes() -> Vec<String> {
    vec!["email".to_owned(), "profile".to_owned()]
}

/// Why there is no client secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("Client secret file {path:?} cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("Client secret file {path:?} can be read by others; run: chmod 600 {path:?}")]
    Exposed { path: PathBuf },
    #[error("Client secret file {path:?} is empty; write into it what the provider gave for this client")]
    Empty { path: PathBuf },
}

impl Settings {
    /// Why they cannot be used: the key, and what is wrong with it.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let issuer = Url::parse(&self.issuer).ok().filter(is_protected);
        let is_plain = |url: &Url| {
            url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none()
        };
        if !issuer.as_ref().is_some_and(is_plain) {
            let problem =
                "must be an https:// URL without user, query and fragment; http:// only on a loopback address";
            return Some(("oidc.issuer", problem));
        }
        let origin = Url::parse(&self.origin).ok().filter(is_protected);
        if origin.is_none_or(|url| url.origin().ascii_serialization() != self.origin) {
            let problem = "must be where browsers reach the dashboard: https://host or https://host:port, without a path; \
                           http:// only on a loopback address";
            return Some(("oidc.origin", problem));
        }
        if self.client_id.is_empty() {
            return Some(("oidc.client_id", "must be what the provider calls this host"));
        }
        if self.name.trim().is_empty() || self.name.len() > MAX_NAME || self.name.contains(char::is_control) {
            return Some(("oidc.name", "must have 1 to 40 bytes, and no control characters"));
        }
        // RFC 6749, 3.3.
        let is_scope = |scope: &String| {
            !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
        };
        if !self.scopes.iter().all(is_scope) {
            return Some(("oidc.scopes", "must be words without spaces"));
        }
        let is_domain = |domain: &String| matches!(Host::parse(domain), Ok(Host::Domain(_)));
        if !self.allowed_domains.iter().all(is_domain) {
            return Some(("oidc.allowed_domains", "must be domains of e-mail addresses: [\"example.com\"]"));
        }
        None
    }

    /// The secret of the client, where it has one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, can be read by others, or holds nothing.
    pub fn client_secret(&self) -> Result<Option<ClientSecret>, SecretError> {
        self.client_secret_file.as_deref().map(read_secret).transpose()
    }
}

fn read_secret(path: &Path) -> Result<ClientSecret, SecretError> {
    let failed = |source| SecretError::Read { path: path.to_owned(), source };
    if private_files::is_exposed(path).map_err(failed)? {
        return Err(SecretError::Exposed { path: path.to_owned() });
    }
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(failed)?);
    match text.trim() {
        "" => Err(SecretError::Empty { path: path.to_owned() }),
        secret => Ok(ClientSecret::new(secret.to_owned())),
    }
}

/// Whether nobody on the way reads or alters what is sent to this address: over TLS, or on this machine.
pub(super) fn is_protected(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings() -> Settings {
        Settings {
            issuer: "https://login.example.com/realms/one".to_owned(),
            client_id: "sandpiper".to_owned(),
            client_secret_file: None,
            origin: "https://sandpiper.example.com".to_owned(),
            name: "Example".to_owned(),
            scopes: scopes(),
            sign_up: false,
            allowed_domains: vec!["example.com".to_owned()],
        }
    }

    #[test]
    fn addresses_are_of_tls_or_of_this_machine() {
        assert_eq!(settings().problem(), None);
        for issuer in ["http://127.0.0.1:3000", "http://[::1]:3000", "http://localhost:3000", "https://10.0.0.1"] {
            assert_eq!(Settings { issuer: issuer.to_owned(), ..settings() }.problem(), None, "{issuer}");
        }
        for issuer in [
            "",
            "login.example.com",
            "http://login.example.com",
            "http://127.0.0.1.example.com",
            "https://a:b@login.example.com",
            "https://login.example.com?a",
            "ftp://127.0.0.1",
        ] {
            let problem = Settings { issuer: issuer.to_owned(), ..settings() }.problem();
            assert_eq!(problem.map(|(key, _)| key), Some("oidc.issuer"), "{issuer}");
        }
        for origin in ["https://a.example/", "https://a.example/dashboard", "http://a.example", "a.example", "*"] {
            let problem = Settings { origin: origin.to_owned(), ..settings() }.problem();
            assert_eq!(problem.map(|(key, _)| key), Some("oidc.origin"), "{origin}");
        }
    }

    #[test]
    fn every_other_value_is_checked() {
        let of = |settings: Settings| settings.problem().map(|(key, _)| key);
        assert_eq!(of(Settings { client_id: String::new(), ..settings() }), Some("oidc.client_id"));
        assert_eq!(of(Settings { name: " ".to_owned(), ..settings() }), Some("oidc.name"));
        assert_eq!(of(Settings { scopes: vec!["a b".to_owned()], ..settings() }), Some("oidc.scopes"));
        for domain in ["", "@example.com", "ada@example.com", "127.0.0.1"] {
            let settings = Settings { allowed_domains: vec![domain.to_owned()], ..settings() };
            assert_eq!(of(settings), Some("oidc.allowed_domains"), "{domain}");
        }
    }

    #[test]
    fn a_secret_is_in_a_file_that_nobody_else_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oidc.secret");
        let settings = Settings { client_secret_file: Some(path.clone()), ..settings() };
        assert!(matches!(settings.client_secret(), Err(SecretError::Read { .. })));
        std::fs::write(&path, "hush\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(settings.client_secret(), Err(SecretError::Exposed { .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(settings.client_secret().unwrap().unwrap().secret(), "hush");
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(settings.client_secret(), Err(SecretError::Empty { .. })));
    }
}
