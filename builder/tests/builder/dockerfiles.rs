//! The trees of builds, beside those that plain buildah makes of the same Dockerfiles.
//!
//! `tests/dockerfiles/` has a folder for each: a Dockerfile, what it copies, and sometimes `prepare`, a script that makes what
//! Git does not keep. `list_tree.py` lists both trees, and the lists must be the same but for what [`MAY_DIFFER`] names.

#[path = "../dockerfiles/compare.rs"]
mod compare;

use std::path::Path;

use serde_json::json;

use crate::registry::Registry;
use crate::support::{Machine, order, run};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dockerfiles");

/// What a version has besides.
const MAY_DIFFER: [&str; 9] = [
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
    "/home/user",
];

#[test]
fn the_tree_of_copy_is_buildahs() {
    check("copy");
}

#[test]
fn the_tree_of_multi_stage_is_buildahs() {
    check("multi-stage");
}

#[test]
fn the_tree_of_arguments_is_buildahs() {
    check("arguments");
}

#[test]
fn the_tree_of_onbuild_is_buildahs() {
    check("onbuild");
}

#[test]
fn the_tree_of_dockerignore_is_buildahs() {
    check("dockerignore");
}

#[test]
fn the_tree_of_add_archive_is_buildahs() {
    check("add-archive");
}

#[test]
fn the_tree_of_users_is_buildahs() {
    check("users");
}

#[test]
fn the_tree_of_links_is_buildahs() {
    check("links");
}

#[test]
fn the_tree_of_modes_is_buildahs() {
    check("modes");
}

#[test]
fn the_tree_of_sparse_is_buildahs() {
    check("sparse");
}

#[test]
fn the_tree_of_layers_is_buildahs() {
    check("layers");
}

#[test]
fn the_tree_of_names_is_buildahs() {
    check("names");
}

#[test]
fn the_tree_of_settings_is_buildahs() {
    check("settings");
}

/// Builds a folder both ways.
fn check(name: &str) {
    let Some(machine) = Machine::new(name, 256) else { return };
    let Some(registry) = Registry::start(name) else { return };
    let context = compare::prepared(&Path::new(FOLDER).join(name));
    let upload = machine.scratch("uploads").join("context.tar");
    run("tar", &["-C", context.path().to_str().unwrap(), "-cf", upload.to_str().unwrap(), "."]);
    machine.upload("upl_1", &upload);
    let mut order = order(json!({"kind": "dockerfile", "context": "upl_1"}));
    order["registries"] = registry.settings();
    let list = format!("/usr/bin/python3 -I -B {FOLDER}/list_tree.py .");

    machine.build(order).finished();
    let ours = machine.in_output(&list);
    let plain = registry.in_root_of(context.path(), &list);

    compare::assert_same(&plain, &ours, &MAY_DIFFER);
}
