//! What buildah's programs read of registries: names, mirrors, what is allowed, credentials, authorities. All of it is in a
//! file system in memory.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandpiper_protocol::builder::Registries;
use sandpiper_protocol::template::{BuildSource, Credentials, StepsBase};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;

/// In a guest `/run` is in memory.
const FOLDER: &str = "/run/sandpiper-builder";

/// Debian's own authorities.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The registry that Docker means by a name without one.
pub(crate) const DOCKERS: &str = "docker.io";

/// Where the files are.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    /// As the order has them, without credentials.
    registries: Registries,
}

/// Where a registry is asked for an image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: String,
    /// Whether it is asked without TLS.
    pub(crate) is_insecure: bool,
    name: String,
    tag: String,
}

impl Place {
    /// Of what is under the image's name.
    pub(crate) fn url(&self) -> String {
        let Self { host, is_insecure, name, tag } = self;
        format!("{}://{host}/v2/{name}/manifests/{tag}", if *is_insecure { "http" } else { "https" })
    }
}

impl Files {
    /// Writes them for one build.
    ///
    /// # Errors
    ///
    /// Fails if they cannot be written, or if the source names a registry that is not allowed.
    pub(crate) fn write(registries: &Registries, source: &BuildSource) -> Result<Self, Failure> {
        if let Some((reference, _)) = image_of(source) {
            check_allowed(&registries.allowed, reference)?;
        }
        let without_credentials = Registries { credentials: BTreeMap::new(), ..registries.clone() };
        let files = Self { folder: PathBuf::from(FOLDER), registries: without_credentials };
        files
            .write_all(registries, source)
            .map_err(|error| Failure::host("The registries cannot be set up", &error))?;
        Ok(files)
    }

    /// Those of an order for an image, in another folder.
    #[cfg(test)]
    pub(crate) fn in_folder(folder: &Path, registries: &Registries) -> Self {
        let files = Self { folder: folder.to_owned(), registries: registries.clone() };
        let known = registries.credentials.iter().map(|(host, one)| (host.as_str(), one)).collect();
        files.put("auth.json", auth(&known).to_string()).unwrap();
        files.put("authorities.pem", fs::read_to_string(AUTHORITIES).unwrap_or_default()).unwrap();
        files
    }

    fn write_all(&self, registries: &Registries, source: &BuildSource) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let text = toml::to_string(&Configuration::of(registries)).map_err(io::Error::other)?;
        self.put("registries.conf", text)?;
        self.put("policy.json", policy(&registries.allowed).to_string())?;
        self.put("auth.json", auth(&credentials(registries, source)).to_string())?;
        let mut authorities = fs::read_to_string(AUTHORITIES)?;
        for authority in &registries.authorities {
            authorities.push('\n');
            authorities.push_str(authority);
        }
        self.put("authorities.pem", authorities)
    }

    /// Refuses an image of a registry that may not be asked.
    ///
    /// # Errors
    ///
    /// Fails if it is of such a registry.
    pub(crate) fn check_allowed(&self, reference: &str) -> Result<(), Failure> {
        check_allowed(&self.registries.allowed, reference)
    }

    /// Where to ask for the image that a name with a tag, or with nothing, stands for; `None` where only buildah knows.
    pub(crate) fn place(&self, reference: &str) -> Option<Place> {
        place(&self.registries, reference)
    }

    /// What is known of a registry that asks who it is asked by, as it is sent.
    pub(crate) fn authorization(&self, host: &str) -> Option<String> {
        let known: Value = serde_json::from_slice(&fs::read(self.auth()).ok()?).ok()?;
        Some(known["auths"][host]["auth"].as_str()?.to_owned())
    }

    /// Has nobody asked with credentials any more. They must be gone before a program of the tenant's runs: of what is in this
    /// machine it can read any file, as buildah 1.28 lets `RUN --mount` lead anywhere (CVE-2024-9675).
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub(crate) fn forget_credentials(&self) -> Result<(), Failure> {
        let put = self.put("auth.json", auth(&BTreeMap::new()).to_string());
        put.map_err(|error| Failure::host("The registries cannot be set up", &error))
    }

    fn put(&self, name: &str, content: String) -> io::Result<()> {
        write_private(&self.folder.join(name), content.as_bytes())
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.folder.join("registries.conf")
    }

    pub(crate) fn policy(&self) -> PathBuf {
        self.folder.join("policy.json")
    }

    pub(crate) fn auth(&self) -> PathBuf {
        self.folder.join("auth.json")
    }

    pub(crate) fn authorities(&self) -> PathBuf {
        self.folder.join("authorities.pem")
    }

    /// Another file that buildah reads.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be written.
    pub(crate) fn put_other(&self, name: &str, content: &str) -> Result<PathBuf, Failure> {
        let path = self.folder.join(name);
        write_private(&path, content.as_bytes())
            .map_err(|error| Failure::host("A file for buildah cannot be written", &error))?;
        Ok(path)
    }
}

fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(content)
}

/// `registries.conf`, of containers-registries.conf(5).
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Configuration {
    unqualified_search_registries: [&'static str; 1],
    short_name_mode: &'static str,
    registry: Vec<Registry>,
}

#[derive(Serialize)]
struct Registry {
    prefix: String,
    location: String,
    insecure: bool,
}

impl Configuration {
    fn of(registries: &Registries) -> Self {
        let mut names: Vec<&String> = registries.mirrors.keys().chain(&registries.insecure).collect();
        names.sort();
        names.dedup();
        let registry = |name: &String| {
            let location = registries.mirrors.get(name).unwrap_or(name);
            let insecure = registries.insecure.iter().any(|host| host == name || host == host_of_location(location));
            Registry { prefix: name.clone(), location: location.clone(), insecure }
        };
        Self {
            unqualified_search_registries: [DOCKERS],
            // There is nobody to choose.
            short_name_mode: "disabled",
            registry: names.into_iter().map(registry).collect(),
        }
    }
}

/// `policy.json`, of containers-policy.json(5): of whom images are taken. Those of this storage and of archives are the
/// build's own.
fn policy(allowed: &[String]) -> Value {
    let accept = json!([{"type": "insecureAcceptAnything"}]);
    let docker: BTreeMap<&str, &Value> = match allowed {
        [] => [("", &accept)].into(),
        hosts => hosts.iter().map(|host| (host.as_str(), &accept)).collect(),
    };
    json!({
        "default": [{"type": "reject"}],
        "transports": {
            "docker": docker,
            "containers-storage": {"": accept},
            "docker-archive": {"": accept},
            "oci-archive": {"": accept},
        },
    })
}

/// `auth.json`, of containers-auth.json(5).
fn auth(credentials: &BTreeMap<&str, &Credentials>) -> Value {
    let auths: BTreeMap<&str, Value> =
        credentials.iter().map(|(host, one)| (*host, json!({"auth": encoded(one)}))).collect();
    json!({"auths": auths})
}

/// A name and its password, as they are sent.
pub(crate) fn encoded(credentials: &Credentials) -> String {
    STANDARD.encode(format!("{}:{}", credentials.username, credentials.password))
}

/// The operator's, and over them those of the order.
fn credentials<'a>(registries: &'a Registries, source: &'a BuildSource) -> BTreeMap<&'a str, &'a Credentials> {
    let mut all: BTreeMap<&str, &Credentials> =
        registries.credentials.iter().map(|(host, credentials)| (host.as_str(), credentials)).collect();
    if let Some((reference, Some(credentials))) = image_of(source) {
        all.insert(registry_of(reference), credentials);
    }
    if let BuildSource::Dockerfile(dockerfile) = source {
        all.extend(dockerfile.credentials.iter().map(|(host, credentials)| (host.as_str(), credentials)));
    }
    all
}

/// The image that a source names by itself, and its credentials.
fn image_of(source: &BuildSource) -> Option<(&str, Option<&Credentials>)> {
    match source {
        BuildSource::Image { reference, credentials } => Some((reference, credentials.as_ref())),
        BuildSource::Steps(steps) => match &steps.from {
            StepsBase::Image { reference, credentials } => Some((reference, credentials.as_ref())),
            StepsBase::Version { .. } => None,
        },
        _ => None,
    }
}

/// The registry of an image's name: what is before the first slash, if that can be a host, as Docker has it.
pub(crate) fn registry_of(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => DOCKERS,
    }
}

fn place(registries: &Registries, reference: &str) -> Option<Place> {
    let host = registry_of(reference);
    check_allowed(&registries.allowed, reference).ok()?;
    let rest = reference.strip_prefix(host).and_then(|rest| rest.strip_prefix('/')).unwrap_or(reference);
    let (name, tag) = rest.rsplit_once(':').unwrap_or((rest, "latest"));
    let library = if host == DOCKERS && !name.contains('/') { "library/" } else { "" };
    let (location, folder) = match registries.mirrors.get(host) {
        Some(mirror) => mirror
            .split_once('/')
            .map_or((mirror.as_str(), String::new()), |(host, folder)| (host, format!("{folder}/"))),
        // It is at another host than its name says.
        None if host == DOCKERS => return None,
        None => (host, String::new()),
    };
    Some(Place {
        host: location.to_owned(),
        is_insecure: registries.insecure.iter().any(|one| one == host || one == location),
        name: format!("{folder}{library}{name}"),
        tag: tag.to_owned(),
    })
}

fn host_of_location(location: &str) -> &str {
    location.split('/').next().unwrap_or_default()
}

fn check_allowed(allowed: &[String], reference: &str) -> Result<(), Failure> {
    let host = registry_of(reference);
    if allowed.is_empty() || allowed.iter().any(|allowed| allowed == host) {
        return Ok(());
    }
    let allowed = allowed.join(", ");
    Err(Failure::SourceRefused(format!("This host takes no images of the registry {host}, only of {allowed}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registries() -> Registries {
        Registries {
            allowed: vec!["a.example".into(), "b.example:5000".into()],
            mirrors: [("a.example".to_owned(), "mirror.example:5000/of/a".to_owned())].into(),
            insecure: vec!["mirror.example:5000".into(), "b.example:5000".into()],
            authorities: Vec::new(),
            credentials: [("a.example".to_owned(), person("operator"))].into(),
        }
    }

    fn person(name: &str) -> Credentials {
        Credentials { username: name.to_owned(), password: "secret".to_owned() }
    }

    fn image(reference: &str, credentials: Option<Credentials>) -> BuildSource {
        BuildSource::Image { reference: reference.to_owned(), credentials }
    }

    #[test]
    fn a_name_without_a_host_is_of_dockers_registry() {
        for (reference, host) in [
            ("a", DOCKERS),
            ("a/b:1", DOCKERS),
            ("a.example/b@sha256:12", "a.example"),
            ("a:5000/b", "a:5000"),
            ("localhost/b", "localhost"),
        ] {
            assert_eq!(registry_of(reference), host, "{reference}");
        }
    }

    #[test]
    fn an_image_is_asked_for_where_its_registry_is() {
        let mut registries = registries();
        registries.allowed.clear();
        let url = |reference: &str| place(&registries, reference).map(|place| place.url());
        assert_eq!(url("c.example/d/e:1").as_deref(), Some("https://c.example/v2/d/e/manifests/1"));
        assert_eq!(url("b.example:5000/d").as_deref(), Some("http://b.example:5000/v2/d/manifests/latest"));
        assert_eq!(url("a.example/d:1").as_deref(), Some("http://mirror.example:5000/v2/of/a/d/manifests/1"));
        assert_eq!(url("debian:12"), None);
        registries.mirrors.insert(DOCKERS.to_owned(), "c.example".to_owned());
        let place = place(&registries, "debian:12").unwrap();
        assert_eq!(place.url(), "https://c.example/v2/library/debian/manifests/12");
    }

    #[test]
    fn mirrors_are_asked_instead_and_insecure_ones_without_tls() {
        let text = toml::to_string(&Configuration::of(&registries())).unwrap();
        let read: toml::Table = text.parse().unwrap();
        let entry = |index: usize, key: &str| read["registry"][index][key].to_string();
        assert_eq!(entry(0, "prefix"), r#""a.example""#);
        assert_eq!(entry(0, "location"), r#""mirror.example:5000/of/a""#);
        assert_eq!((entry(0, "insecure"), entry(1, "insecure")), ("true".into(), "true".into()));
        assert_eq!(entry(1, "location"), r#""b.example:5000""#);
    }

    #[test]
    fn only_allowed_registries_are_taken_from() {
        let rules = policy(&registries().allowed);
        assert_eq!(rules["default"][0]["type"], "reject");
        assert!(rules["transports"]["docker"]["a.example"].is_array());
        assert!(rules["transports"]["docker"].get("").is_none());
        assert!(policy(&[])["transports"]["docker"][""].is_array());

        assert!(check_allowed(&registries().allowed, "b.example:5000/x").is_ok());
        let refused = check_allowed(&registries().allowed, "b.example/x").unwrap_err();
        assert!(refused.to_string().contains("only of a.example, b.example:5000"), "{refused}");
    }

    #[test]
    fn the_orders_credentials_come_before_the_operators() {
        let (registries, source) = (registries(), image("a.example/x", Some(person("tenant"))));
        assert_eq!(credentials(&registries, &source)["a.example"].username, "tenant");
        let without = image("a.example/x", None);
        let auth = auth(&credentials(&registries, &without));
        assert_eq!(auth["auths"]["a.example"]["auth"], STANDARD.encode("operator:secret"));
    }
}
