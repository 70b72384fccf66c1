//! `ingress.tls`: where the listener's certificate comes from.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::ConfigError;

/// Written as `"off"`, `"local_ca"`, `{ certificate = "…", key = "…" }` or `{ acme = { … } }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// Plain HTTP: for development, or behind something that ends TLS.
    Off,
    /// A certificate of our own authority, made on first use.
    LocalCa,
    /// PEM files: a certificate with its chain for `*.<data_plane_host>`, and its key. Read again when they change.
    Files { certificate: PathBuf, key: PathBuf },
    /// A certificate that is ordered and renewed by itself.
    Acme(AcmeConfig),
}

/// Who issues the certificate, and how to prove to them that the domain is ours.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// URL of the issuer's directory.
    pub directory: String,
    /// The issuer's terms of service are agreed to.
    #[serde(default)]
    pub agree_to_terms: bool,
    /// Where the issuer may write to: `["mailto:ops@example.test"]`.
    #[serde(default)]
    pub contact: Vec<String>,
    /// Program and first arguments of what sets DNS records. It is called with `present NAME VALUE` to publish a TXT record,
    /// beside others of the same name, and with `cleanup NAME VALUE` to remove it.
    pub hook: Vec<String>,
    /// For one call of the hook.
    #[serde(default = "hook_timeout_seconds")]
    pub hook_timeout_seconds: u64,
    /// What a new record needs to be seen everywhere, where the hook does not wait for that itself.
    #[serde(default)]
    pub propagation_seconds: u64,
    /// PEM file with the root that the issuer's own certificate leads to, where the system does not know it.
    #[serde(default)]
    pub root: Option<PathBuf>,
}

fn hook_timeout_seconds() -> u64 {
    120
}

impl Tls {
    /// Checks what the type does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Tls::Acme(acme) => acme.validate(),
            Tls::Off | Tls::LocalCa | Tls::Files { .. } => Ok(()),
        }
    }
}

impl AcmeConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |key, problem| Err(ConfigError::Acme { key, problem });
        if !self.directory.starts_with("https://") {
            return invalid("directory", "must be a URL that begins with https://");
        }
        if !self.agree_to_terms {
            return invalid("agree_to_terms", "must be true: read the issuer's terms of service");
        }
        if self.hook.first().is_none_or(|program| program.is_empty()) {
            return invalid("hook", "must name a program that sets DNS records");
        }
        if !(1..=3600).contains(&self.hook_timeout_seconds) {
            return invalid("hook_timeout_seconds", "must be between 1 and 3600");
        }
        if self.propagation_seconds > 3600 {
            return invalid("propagation_seconds", "must be at most 3600");
        }
        Ok(())
    }

    pub fn hook_timeout(&self) -> Duration {
        Duration::from_secs(self.hook_timeout_seconds)
    }

    pub fn propagation(&self) -> Duration {
        Duration::from_secs(self.propagation_seconds)
    }
}

impl<'de> Deserialize<'de> for Tls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tls, D::Error> {
        deserializer.deserialize_any(TlsVisitor)
    }
}

/// By hand, because an untagged enum would not say what is wrong.
struct TlsVisitor;

impl<'de> Visitor<'de> for TlsVisitor {
    type Value = Tls;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""off", "local_ca", { certificate = "FILE", key = "FILE" } or { acme = { … } }"#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Tls, E> {
        match text {
            "off" => Ok(Tls::Off),
            "local_ca" => Ok(Tls::LocalCa),
            other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tls, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            certificate: Option<PathBuf>,
            key: Option<PathBuf>,
            acme: Option<AcmeConfig>,
        }
        match Table::deserialize(de::value::MapAccessDeserializer::new(map))? {
            Table { certificate: Some(certificate), key: Some(key), acme: None } => Ok(Tls::Files { certificate, key }),
            Table { certificate: None, key: None, acme: Some(acme) } => Ok(Tls::Acme(acme)),
            Table { certificate: Some(_), key: None, .. } => Err(de::Error::missing_field("key")),
            Table { certificate: None, key: Some(_), .. } => Err(de::Error::missing_field("certificate")),
            Table { .. } => Err(de::Error::custom(format_args!("expected {}", Expected))),
        }
    }
}

/// [`TlsVisitor`]'s expectation, for messages of our own.
struct Expected;

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TlsVisitor.expecting(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IngressConfig;

    const ACME: &str = "[tls.acme]\ndirectory = 'https://acme.example.test/directory'\nagree_to_terms = true\n\
                        hook = ['/etc/sandpiper/dns-hook', '--zone', 'example.test']\n";

    fn parse(text: &str) -> Result<IngressConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_tls_is_understood() {
        assert_eq!(parse("").expect("defaults").tls, Tls::Off);
        assert_eq!(parse("tls = 'off'").expect("valid").tls, Tls::Off);
        assert_eq!(parse("tls = 'local_ca'").expect("valid").tls, Tls::LocalCa);
        let files = parse("tls = { certificate = '/a.pem', key = '/a.key' }").expect("valid").tls;
        assert_eq!(files, Tls::Files { certificate: "/a.pem".into(), key: "/a.key".into() });
        let acme = parse(ACME).expect("valid");
        assert_eq!(acme.validate(), Ok(()));
        assert!(matches!(acme.tls, Tls::Acme(AcmeConfig { hook_timeout_seconds: 120, propagation_seconds: 0, .. })));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("tls = 'on'").expect_err("no such mode").contains("local_ca"));
        assert!(parse("tls = { certificate = '/a.pem' }").expect_err("half").contains("key"));
        assert!(parse("tls = { key = '/a.key' }").expect_err("half").contains("certificate"));
        assert!(parse("tls = {}").expect_err("nothing").contains("acme"));
        assert!(parse("[tls.acme]\nhook = ['x']").expect_err("no issuer").contains("directory"));
        let without = |line: &str| parse(&ACME.replace(line, "")).expect("well-formed").validate();
        assert!(matches!(without("agree_to_terms = true\n"), Err(ConfigError::Acme { key: "agree_to_terms", .. })));
        let plain = parse(&ACME.replace("https:", "http:")).expect("well-formed").validate();
        assert!(matches!(plain, Err(ConfigError::Acme { key: "directory", .. })));
    }
}
