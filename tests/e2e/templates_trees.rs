//! The tree of a sandbox, beside the one that plain buildah makes of the same Dockerfile outside.
//!
//! The builder's own tests compare what all of `builder/tests/dockerfiles/` becomes. Here is the one that has most of what
//! could be lost on the way from the builder's disk to a sandbox's root.

#[path = "../../builder/tests/dockerfiles/compare.rs"]
mod compare;

use std::process::Command;

use sandpiper_documentation::root;
use support::{Host, Registry};

tests! {
    shared: [
        the_tree_of_modes_is_buildahs,
    ],
    alone: [],
}

const LISTER: &str = include_str!("../../builder/tests/dockerfiles/list_tree.py");

/// What a version has besides, and what a sandbox changes when it starts. A path that ends with a slash is a folder with all
/// that is in it.
const MAY_DIFFER: [&str; 21] = [
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
    // What is mounted there is not of the tree.
    "/dev/",
    "/proc/",
    "/run/",
    "/sys/",
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

async fn the_tree_of_modes_is_buildahs() {
    check("modes").await;
}

/// Builds a folder both ways.
async fn check(name: &str) {
    let (host, registry) = (Host::shared(), Registry::with_base());
    let folder = compare::prepared(&root().join("builder/tests/dockerfiles").join(name));
    let (slug, image) = (format!("tree-{name}"), format!("localhost/tree-{name}:1"));

    registry.build(folder.path(), &image);
    let outside = registry.with_root(&image, |root| {
        let listed = Command::new("python3").args(["-I", "-B", "-c", LISTER]).arg(root).output().expect("python3 runs");
        assert!(listed.status.success(), "{}", support::text(&listed.stderr));
        support::text(&listed.stdout)
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
    // Python would leave what it compiled.
    let listed = sandbox.root_sh("python3 -I -B /tmp/list_tree.py /").await;
    assert_eq!(listed.end.exit_code, 0, "{}", support::text(&listed.stderr));
    compare::assert_same(&outside, &support::text(&listed.stdout), &MAY_DIFFER);
    host.leaves_nothing(sandbox).await;
}
