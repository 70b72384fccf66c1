//! apt: `sources.list` and the files of `sources.list.d`, in the one-line style and in deb822 (sources.list(5)), with the
//! lists of mirrors that they name (apt-transport-mirror(1)).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{Findings, Places};

/// Most files in the folder that are read.
const MAX_FILES: usize = 1000;

pub(super) fn find(places: &Places, findings: &mut Findings) {
    let folder = places.etc.join("apt");
    let mut files = vec![folder.join("sources.list")];
    // A host that has no such folder has nothing in it.
    let entries = folder.join("sources.list.d").read_dir().into_iter().flatten().flatten();
    let mut more: Vec<PathBuf> = entries.map(|entry| entry.path()).take(MAX_FILES).collect();
    more.sort();
    files.append(&mut more);
    for path in files {
        let parse = match path.extension().and_then(OsStr::to_str) {
            Some("list") => one_line,
            Some("sources") => deb822,
            _ => continue,
        };
        for url in findings.read(&path).iter().flat_map(|text| parse(text)) {
            add(url, findings);
        }
    }
}

/// Adds what a source's URL stands for.
fn add(url: &str, findings: &mut Findings) {
    if let Some(list) = url.strip_prefix("mirror+file:") {
        let list = Path::new("/").join(list.trim_start_matches('/'));
        for mirror in findings.read(&list).iter().flat_map(|text| mirrors(text)) {
            findings.add("apt", mirror);
        }
        return;
    }
    // A list of mirrors that is fetched is known to name its own host only.
    match url.strip_prefix("mirror:") {
        Some(rest) => findings.add("apt", &format!("http:{rest}")),
        None => findings.add("apt", url.strip_prefix("mirror+").unwrap_or(url)),
    }
}

/// A source a line.
fn one_line(text: &str) -> Vec<&str> {
    without_comments(text).filter_map(source).collect()
}

/// The URL in `deb [arch=amd64 signed-by=/key] http://host/path suite component`.
fn source(line: &str) -> Option<&str> {
    let (kind, rest) = line.trim().split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => rest,
    };
    rest.split_whitespace().next().filter(|_| matches!(kind, "deb" | "deb-src"))
}

/// Stanzas of `Name: value` between empty lines; a line that begins with a space goes on with the value before.
fn deb822(text: &str) -> Vec<&str> {
    let (mut urls, mut stanza) = (Vec::new(), Vec::new());
    let (mut is_enabled, mut is_urls) = (true, false);
    // The last stanza ends with the text.
    for line in text.lines().filter(|line| !line.starts_with('#')).chain([""]) {
        if line.trim().is_empty() {
            urls.extend(stanza.drain(..).filter(|_| is_enabled));
            (is_enabled, is_urls) = (true, false);
        } else if line.starts_with(char::is_whitespace) {
            stanza.extend(line.split_whitespace().filter(|_| is_urls));
        } else if let Some((name, value)) = line.split_once(':') {
            is_urls = name.eq_ignore_ascii_case("URIs");
            stanza.extend(value.split_whitespace().filter(|_| is_urls));
            if name.eq_ignore_ascii_case("Enabled") {
                is_enabled = !is_no(value.trim());
            }
        }
    }
    urls
}

/// What apt takes for a no.
fn is_no(value: &str) -> bool {
    ["no", "false", "without", "off", "disable", "0"].iter().any(|no| value.eq_ignore_ascii_case(no))
}

/// A mirror a line, perhaps with its priority and the like after a tab.
fn mirrors(text: &str) -> Vec<&str> {
    without_comments(text).filter_map(|line| line.split_whitespace().next()).collect()
}

fn without_comments(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.split('#').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_sources_are_found_behind_their_options() {
        let text = "\
# deb http://comment.example.test/debian stable main
deb http://a.example.test/debian stable main # main
  deb-src\t[arch=amd64 signed-by=/usr/share/keyrings/b.gpg]  https://b.example.test stable main
deb [ trusted=yes ] cdrom:[Disc 1]/ stable
debug http://c.example.test
deb [unclosed http://d.example.test
deb
";
        assert_eq!(one_line(text), ["http://a.example.test/debian", "https://b.example.test", "cdrom:[Disc"]);
    }

    #[test]
    fn stanzas_have_several_urls_and_may_be_disabled() {
        let text = "\
Types: deb
# URIs: http://comment.example.test
uris: http://a.example.test/debian
 http://b.example.test/debian
# between
 https://c.example.test
Suites: stable
 http://suite.example.test
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----

Enabled: No
URIs: http://disabled.example.test

Enabled: yes
URIs: http://d.example.test";
        assert_eq!(
            deb822(text),
            [
                "http://a.example.test/debian",
                "http://b.example.test/debian",
                "https://c.example.test",
                "http://d.example.test"
            ]
        );
    }

    #[test]
    fn lists_of_mirrors_are_read_and_remote_ones_name_their_host() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("mirrors.list");
        let text = "# nearest first\nhttp://near.example.test/debian\tpriority:1\nmirror+file:/etc/passwd\n";
        std::fs::write(&list, text).unwrap();
        let mut findings = Findings::default();
        add(&format!("mirror+file:{}", list.display()), &mut findings);
        add("mirror+https://list.example.test/mirrors", &mut findings);
        add("mirror://old.example.test/mirrors", &mut findings);
        let found: Vec<_> = findings.registries.into_keys().collect();
        assert_eq!(found, ["list.example.test:443", "near.example.test:80", "old.example.test:80"]);
    }
}
