//! What the tests here and those of a whole host do alike with these folders.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A copy of a folder, with what its script `prepare` makes, which Git does not keep.
pub(crate) fn prepared(source: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let script = "cp -a \"$1/.\" . && if [ -e prepare ]; then bash -e ./prepare && rm prepare; fi";
    let made = Command::new("bash").args(["-ec", script, "prepare"]).arg(source).current_dir(copy.path()).output();
    let made = made.expect("bash runs");
    assert!(made.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&made.stderr));
    copy
}

/// Fails unless `list_tree.py` listed the same, but for paths that may differ. One that ends with a slash is a folder with all
/// that is in it.
pub(crate) fn assert_same(plain: &str, ours: &str, may_differ: &[&str]) {
    let (plain, ours) = (entries(plain, may_differ), entries(ours, may_differ));
    // Less is no Debian.
    assert!(plain.len() > 1000, "buildah's tree has {} entries", plain.len());
    let shown = |entry: Option<&Value>| entry.map_or_else(|| "nothing".to_owned(), Value::to_string);
    let added = ours.keys().filter(|path| !plain.contains_key(*path));
    let differences: Vec<_> = plain
        .keys()
        .chain(added)
        .map(|path| (plain.get(path), ours.get(path)))
        .filter(|(plain, ours)| plain != ours)
        .map(|(plain, ours)| format!("buildah: {}\n   ours: {}", shown(plain), shown(ours)))
        .collect();
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences[..differences.len().min(40)].join("\n")
    );
}

/// What was listed, by path, without what may differ.
fn entries(list: &str, may_differ: &[&str]) -> BTreeMap<String, Value> {
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let entries = list.lines().map(parse).map(|entry| (entry["path"].as_str().expect("a path").to_owned(), entry));
    entries.filter(|(path, _)| !may_differ.iter().any(|other| covers(other, path))).collect()
}

fn covers(other: &str, path: &str) -> bool {
    match other.strip_suffix('/') {
        Some(folder) => path == folder || path.starts_with(other),
        None => path == other,
    }
}
