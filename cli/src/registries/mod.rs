//! Where this host's package managers fetch packages from: what a sandbox has to reach to install them the same way.
//!
//! Each manager has a file here that knows where it is configured and finds the URLs in there. Of a URL only host and port
//! are kept: a firewall has no use for a path, and credentials are nobody's business. What a manager falls back to without
//! configuration is not known here; only npm says so when it is asked.
//!
//! Nothing that stands in a file stops the search. What cannot be read is told of, without its content; a URL that is no
//! `http` or `https`, or whose host could not stand in a policy, is passed over.

mod apt;
mod cargo;
mod npm;
mod pip;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use reqwest::Url;
use sandpiper_policy::{Entry, Target};

/// The managers whose configuration is read.
pub(crate) const MANAGERS: [&str; 4] = ["apt", "cargo", "npm", "pip"];

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Far more than a host has; it bounds what a file of noise leads to.
const MAX_REGISTRIES: usize = 256;

/// Where to look.
struct Places {
    /// `/etc`
    etc: PathBuf,
    home: Option<PathBuf>,
    cargo_home: Option<PathBuf>,
    /// URLs in the environment that pip takes before those in its files.
    pip_urls: Vec<String>,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// `host:port`, and who fetches from there.
    pub(crate) registries: BTreeMap<String, BTreeSet<&'static str>>,
    /// What could not be looked at, and why.
    pub(crate) warnings: Vec<String>,
}

/// Reads the configuration of this host's package managers.
pub(crate) async fn find() -> anyhow::Result<Findings> {
    let reading = tokio::task::spawn_blocking(|| Places::of_this_host().read());
    let mut findings = reading.await.context("Cannot read the package managers' configuration")?;
    npm::ask(&mut findings).await;
    Ok(findings)
}

impl Places {
    fn of_this_host() -> Self {
        let home = env::var_os("HOME").map(PathBuf::from);
        let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
        Self {
            etc: "/etc".into(),
            cargo_home: cargo_home.or_else(|| home.as_ref().map(|home| home.join(".cargo"))),
            home,
            pip_urls: pip::VARIABLES.iter().filter_map(|name| env::var(name).ok()).collect(),
        }
    }

    fn read(&self) -> Findings {
        let mut findings = Findings::default();
        apt::find(self, &mut findings);
        cargo::find(self, &mut findings);
        npm::find(self, &mut findings);
        pip::find(self, &mut findings);
        findings
    }
}

impl Findings {
    fn add(&mut self, manager: &'static str, url: &str) {
        let Some(registry) = host_and_port(url) else { return };
        if self.registries.len() < MAX_REGISTRIES || self.registries.contains_key(&registry) {
            self.registries.entry(registry).or_default().insert(manager);
        }
    }

    /// The text of a file, if there is one.
    fn read(&mut self, path: &Path) -> Option<String> {
        read(path).unwrap_or_else(|error| {
            self.warn(path, &error);
            None
        })
    }

    fn warn(&mut self, path: &Path, problem: &dyn std::fmt::Display) {
        self.warnings.push(format!("cannot read {}: {problem}", path.display()));
    }
}

/// Only ordinary files, and none that are too long to be configuration.
fn read(path: &Path) -> io::Result<Option<String>> {
    // So that a pipe is not waited for.
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no ordinary file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it is larger than {} KiB", MAX_FILE >> 10)));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// `host:port` of a URL, as an entry of a profile.
fn host_and_port(url: &str) -> Option<String> {
    let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let entry: Entry = format!("{}:{}", url.host_str()?, url.port_or_known_default()?).parse().ok()?;
    // A URL may have a `*` in its host, which means nothing there, and in an entry would open more than one.
    (!matches!(entry.target, Target::Subdomains(_))).then(|| entry.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Places below a folder of the test's own.
    fn places(folder: &Path) -> Places {
        let home = folder.join("home");
        Places {
            etc: folder.join("etc"),
            cargo_home: Some(home.join(".cargo")),
            home: Some(home),
            pip_urls: Vec::new(),
        }
    }

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn of_a_url_host_and_port_are_kept_and_nothing_else() {
        for (url, registry) in [
            ("http://deb.example.test/debian", "deb.example.test:80"),
            ("https://USER:s3cret@Packages.example.test./simple?token=x#y", "packages.example.test:443"),
            ("https://packages.example.test:8443/", "packages.example.test:8443"),
            ("http://192.0.2.7", "192.0.2.7:80"),
            ("https://[2001:db8::7]/", "[2001:db8::7]:443"),
            ("https://bücher.example.test", "xn--bcher-kva.example.test:443"),
        ] {
            assert_eq!(host_and_port(url).as_deref(), Some(registry), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_an_entry_is_passed_over() {
        for url in [
            "",
            "packages.example.test",
            "file:///srv/packages",
            "cdrom:[Disc 1]/",
            "ssh://git@packages.example.test/index",
            "ftp://packages.example.test",
            "https://*.example.test/",
            "https://${REGISTRY}/",
            "https://packages.example.test:0/",
            "https://packages.example.test:99999/",
            "https://",
            "https://-packages.example.test/",
        ] {
            assert_eq!(host_and_port(url), None, "{url}");
        }
    }

    #[test]
    fn all_managers_are_read_and_named_with_what_they_use() {
        let folder = tempfile::tempdir().unwrap();
        let mut places = places(folder.path());
        places.pip_urls = vec!["https://pip.example.test/simple".into()];
        write(places.etc.join("apt/sources.list"), "deb http://deb.example.test/debian stable main\n");
        write(places.etc.join("apt/sources.list.d/more.sources"), "URIs: https://more.example.test\n");
        write(places.etc.join("pip.conf"), "[global]\nextra-index-url = https://all.example.test/simple\n");
        write(folder.path().join("home/.npmrc"), "registry=https://all.example.test/npm\n");
        write(folder.path().join("home/.cargo/config.toml"), "[source.own]\nregistry = \"https://all.example.test\"\n");

        let findings = places.read();
        let found = |registry: &str| findings.registries[registry].iter().copied().collect::<Vec<_>>();
        assert_eq!(found("all.example.test:443"), ["cargo", "npm", "pip"]);
        assert_eq!(found("deb.example.test:80"), ["apt"]);
        assert_eq!(found("more.example.test:443"), ["apt"]);
        assert_eq!(found("pip.example.test:443"), ["pip"]);
        assert_eq!(findings.registries.len(), 4);
        assert_eq!(findings.warnings, Vec::<String>::new());
    }

    #[test]
    fn a_host_without_configuration_has_no_findings() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(places(folder.path()).read(), Findings::default());
    }

    #[test]
    fn bad_files_are_told_of_and_do_not_hide_good_ones() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        write(places.etc.join("apt/sources.list"), &"#".repeat(usize::try_from(MAX_FILE).unwrap() + 1));
        nix::unistd::mkfifo(&places.etc.join("npmrc"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::write(places.etc.join("pip.conf"), b"\xff\xfe\0[global\nindex-url = https://pip.example.test\n").unwrap();
        write(folder.path().join("home/.cargo/config.toml"), "token = s3cret\n");

        let findings = places.read();
        assert_eq!(findings.registries.into_keys().collect::<Vec<_>>(), ["pip.example.test:443"]);
        let warnings = findings.warnings.join("\n");
        assert_eq!(findings.warnings.len(), 3, "{warnings}");
        assert!(warnings.contains("sources.list: it is larger than 1024 KiB"), "{warnings}");
        assert!(warnings.contains("npmrc: it is no ordinary file"), "{warnings}");
        assert!(warnings.contains("config.toml: ") && !warnings.contains("s3cret"), "{warnings}");
    }

    #[test]
    fn noise_leads_to_no_more_registries_than_a_host_may_have() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        let noise: String = (0..1000).map(|n| format!("deb http://n{n}.example.test x\n")).collect();
        write(places.etc.join("apt/sources.list"), &noise);
        assert_eq!(places.read().registries.len(), MAX_REGISTRIES);
    }
}
