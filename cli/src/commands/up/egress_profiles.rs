//! The file of egress profiles that `up` makes where the operator's settings name none, and `host profiles` where it is told. It is written once, from what this
//! host's package managers use; from then on it is the operator's, and never touched again.

use std::path::Path;

use anyhow::Context;
use sandpiper_durable::{self as durable, Access};
use sandpiper_policy::PACKAGE_REGISTRIES;
use serde_json::json;

use crate::registries::{self, Findings, MANAGERS};

/// Makes the file if there is none, and says what was found for it.
pub(crate) async fn ensure(path: &Path) -> anyhow::Result<()> {
    // A link to nowhere is the operator's as well.
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let findings = registries::find().await?;
    if store(path, &findings).with_context(|| format!("Cannot write {}", path.display()))? {
        // For people: on standard output is what a script reads.
        eprint!("{}", report(path, &findings));
    }
    Ok(())
}

/// Whether there was no file: one that has come to be there meanwhile stays.
fn store(path: &Path, findings: &Findings) -> std::io::Result<bool> {
    let registries: Vec<_> = findings.registries.keys().collect();
    let document = json!({"profiles": {PACKAGE_REGISTRIES: registries}});
    durable::create_atomic(path, Access::READABLE, format!("{document:#}\n").as_bytes())
}

fn report(path: &Path, findings: &Findings) -> String {
    let mut lines: Vec<_> = findings.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
    lines.push(format!(
        "wrote {}: its profile {PACKAGE_REGISTRIES} has what this host's package managers use",
        path.display()
    ));
    for (registry, managers) in &findings.registries {
        let managers: Vec<_> = managers.iter().copied().collect();
        lines.push(format!("  {registry} ({})", managers.join(", ")));
    }
    let found = |manager: &&&str| findings.registries.values().any(|managers| managers.contains(**manager));
    let others: Vec<_> = MANAGERS.iter().filter(|manager| !found(manager)).copied().collect();
    if !others.is_empty() {
        lines.push(format!("  none for {}, as none is configured here; edit the file to add some", others.join(", ")));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use sandpiper_policy::Profiles;

    use super::*;

    fn findings() -> Findings {
        let registries = [("a.example.test:443", vec!["npm", "pip"]), ("b.example.test:80", vec!["apt"])];
        let registries = registries.map(|(registry, managers)| (registry.to_owned(), managers.into_iter().collect()));
        Findings { registries: registries.into(), warnings: vec!["cannot read x: why".into()] }
    }

    #[test]
    fn the_file_is_a_profile_that_everybody_may_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profiles.json");
        store(&path, &findings()).unwrap();
        let profiles = Profiles::read(&path).unwrap();
        let entries: Vec<_> = profiles.get("package-registries").unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(entries, ["a.example.test:443", "b.example.test:80"]);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn nothing_found_makes_a_profile_that_allows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profiles.json");
        store(&path, &Findings::default()).unwrap();
        assert!(Profiles::read(&path).unwrap().get("package-registries").unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_file_that_is_there_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profiles.json");
        fs::write(&path, "the operator's").unwrap();
        ensure(&path).await.unwrap();
        assert!(!store(&path, &findings()).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "the operator's");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn the_report_tells_who_uses_what_and_who_is_missing() {
        assert_eq!(
            report(Path::new("/x/profiles.json"), &findings()),
            "warning: cannot read x: why\n\
             wrote /x/profiles.json: its profile package-registries has what this host's package managers use\n  \
             a.example.test:443 (npm, pip)\n  \
             b.example.test:80 (apt)\n  \
             none for cargo, as none is configured here; edit the file to add some\n"
        );
    }
}
