//! npm: `npmrc` of the host and of the user, which may name a registry for each scope; and npm itself, which knows what it
//! uses without any.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::{Findings, Places};

/// npm takes a quarter of a second on a machine at full speed.
const TIME_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn find(places: &Places, findings: &mut Findings) {
    let of_user = places.home.iter().map(|home| home.join(".npmrc"));
    let paths: Vec<_> = std::iter::once(places.etc.join("npmrc")).chain(of_user).collect();
    for path in paths {
        for url in findings.read(&path).iter().flat_map(|text| urls(text)) {
            findings.add("npm", url);
        }
    }
}

/// Asks npm, if there is one, for the registry that it uses.
pub(super) async fn ask(findings: &mut Findings) {
    let asked = Command::new("npm")
        .args(["config", "get", "registry"])
        // Not in a project, which has settings of its own.
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let problem = match tokio::time::timeout(TIME_LIMIT, asked).await {
        Ok(Ok(answer)) if answer.status.success() => {
            return String::from_utf8_lossy(&answer.stdout).lines().for_each(|url| findings.add("npm", url));
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => return,
        Ok(Ok(answer)) => format!("it ended with {}", answer.status),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it did not answer within {} s", TIME_LIMIT.as_secs()),
    };
    findings.warnings.push(format!("cannot ask npm for its registry: {problem}"));
}

fn urls(text: &str) -> Vec<&str> {
    text.lines().filter_map(registry).collect()
}

/// The URL in `registry=https://…` and `@scope:registry=https://…`.
fn registry(line: &str) -> Option<&str> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let is_registry = key == "registry" || (key.starts_with('@') && key.ends_with(":registry"));
    is_registry.then(|| value.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_and_those_of_scopes_are_found() {
        let text = "\
; registry=https://comment.example.test
registry = \"https://a.example.test/npm/\"
@team:registry=https://b.example.test
//c.example.test/:_authToken=s3cret
//c.example.test/:registry=https://d.example.test
proxy=https://e.example.test
registry
";
        assert_eq!(urls(text), ["https://a.example.test/npm/", "https://b.example.test"]);
    }
}
