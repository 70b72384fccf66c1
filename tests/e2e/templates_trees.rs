//! The trees of versions, beside those that plain buildah makes of the same Dockerfiles outside.
//!
//! `dockerfiles/` has a folder for each: a Dockerfile, what it copies, and sometimes `prepare`, a script that makes what Git
//! does not keep. `list_tree.py` lists both trees, and the lists must be the same but for what [`MAY_DIFFER`] names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandpiper_documentation::root;
use serde_json::Value;
use support::{Host, Registry};

tests! {
    shared: [
        the_tree_of_copy_is_buildahs,
        the_tree_of_multi_stage_is_buildahs,
        the_tree_of_arguments_is_buildahs,
        the_tree_of_onbuild_is_buildahs,
        the_tree_of_dockerignore_is_buildahs,
        the_tree_of_add_archive_is_buildahs,
        the_tree_of_users_is_buildahs,
        the_tree_of_links_is_buildahs,
        the_tree_of_modes_is_buildahs,
        the_tree_of_sparse_is_buildahs,
        the_tree_of_layers_is_buildahs,
        the_tree_of_names_is_buildahs,
        the_tree_of_settings_is_buildahs,
    ],
    alone: [],
}

const LISTER: &str = include_str!("dockerfiles/list_tree.py");

/// What a version has besides, and what a sandbox changes when it starts. A path that ends with a slash is a folder with all
/// that is in it.
const MAY_DIFFER: [&str; 17] = [
    // The guest's first process, and the names that it is called by.
    "/usr/sbin/sandpiper-init",
    "/usr/sbin/init",
    "/usr/sbin/poweroff",
    "/usr/sbin/halt",
    "/usr/sbin/reboot",
    // The default user, who is made where the image has none.
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/home/user/",
    // Each sandbox's own.
    "/etc/hostname",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/machine-id",
    // Made of the file system itself, and by whoever uses it.
    "/lost+found/",
    "/tmp/",
    "/var/log/",
    "/root/.cache/",
];

async fn the_tree_of_copy_is_buildahs() {
    compare("copy").await;
}

async fn the_tree_of_multi_stage_is_buildahs() {
    compare("multi-stage").await;
}

async fn the_tree_of_arguments_is_buildahs() {
    compare("arguments").await;
}

async fn the_tree_of_onbuild_is_buildahs() {
    compare("onbuild").await;
}

async fn the_tree_of_dockerignore_is_buildahs() {
    compare("dockerignore").await;
}

async fn the_tree_of_add_archive_is_buildahs() {
    compare("add-archive").await;
}

async fn the_tree_of_users_is_buildahs() {
    compare("users").await;
}

async fn the_tree_of_links_is_buildahs() {
    compare("links").await;
}

async fn the_tree_of_modes_is_buildahs() {
    compare("modes").await;
}

async fn the_tree_of_sparse_is_buildahs() {
    compare("sparse").await;
}

async fn the_tree_of_layers_is_buildahs() {
    compare("layers").await;
}

async fn the_tree_of_names_is_buildahs() {
    compare("names").await;
}

async fn the_tree_of_settings_is_buildahs() {
    compare("settings").await;
}

/// Builds a folder of `dockerfiles/` both ways.
async fn compare(name: &str) {
    let (host, registry) = (Host::shared(), Registry::shared());
    let folder = prepared(name);
    let (slug, image) = (format!("tree-{name}"), format!("localhost/tree-{name}:1"));

    registry.build(folder.path(), &image);
    let outside = registry.with_root(&image, |root| {
        let listed = Command::new("python3").args(["-c", LISTER]).arg(root).output().expect("python3 runs");
        assert!(listed.status.success(), "{}", support::text(&listed.stderr));
        entries(&support::text(&listed.stdout))
    });
    registry.remove(&image);
    let template = host.template_of_the_cli(&slug);
    let arguments =
        ["template", "build", folder.path().to_str().expect("text"), "-t", &slug, "--memory", "256", "--cpu", "1"];
    let built = host.cli(&arguments).output().expect("the command runs");
    assert!(built.status.success(), "{}", support::text(&built.stderr));
    let sandbox = host.sandbox_with(&template.sandbox()).await;
    sandbox
        .data_plane
        .write_file("/tmp/list_tree.py", LISTER.as_bytes().to_vec(), Some("root"))
        .await
        .expect("it is there");
    let listed = sandbox.root_sh("python3 /tmp/list_tree.py /").await;
    assert_eq!(listed.end.exit_code, 0, "{}", support::text(&listed.stderr));
    let inside = entries(&support::text(&listed.stdout));

    let mut differences = Vec::new();
    for path in outside.keys().chain(inside.keys().filter(|path| !outside.contains_key(*path))) {
        let (plain, ours) = (outside.get(path), inside.get(path));
        if plain != ours {
            let shown = |entry: Option<&Value>| entry.map_or_else(|| "nothing".to_owned(), Value::to_string);
            differences.push(format!("buildah: {}\n   ours: {}", shown(plain), shown(ours)));
        }
    }
    assert!(outside.len() > 1000, "buildah's tree has {} entries", outside.len());
    assert!(
        differences.is_empty(),
        "{name}: {} differences\n{}",
        differences.len(),
        differences[..differences.len().min(40)].join("\n")
    );
    host.leaves_nothing(sandbox).await;
}

/// A copy of the folder, with what its script makes.
fn prepared(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let source: PathBuf = [root(), Path::new("tests/e2e/dockerfiles"), Path::new(name)].iter().collect();
    let script = "cp -a \"$1/.\" . && if [ -e prepare ]; then bash -e ./prepare && rm prepare; fi";
    let made = Command::new("bash").args(["-ec", script, "prepare"]).arg(&source).current_dir(copy.path()).output();
    let made = made.expect("bash runs");
    assert!(made.status.success(), "{name}: {}", support::text(&made.stderr));
    copy
}

/// What was listed, by path, without what may differ.
fn entries(list: &str) -> BTreeMap<String, Value> {
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let entries = list.lines().map(parse).map(|entry| (entry["path"].as_str().expect("a path").to_owned(), entry));
    entries.filter(|(path, _)| !may_differ(path)).collect()
}

fn may_differ(path: &str) -> bool {
    MAY_DIFFER.iter().any(|other| match other.strip_suffix('/') {
        Some(folder) => path == folder || path.starts_with(other),
        None => path == *other,
    })
}
