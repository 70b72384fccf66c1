//! Sources other than Dockerfiles.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::{Machine, context, order, run};
use serde_json::json;

/// A shell and what it was called by, as a version's root.
fn make_base(machine: &Machine) {
    let bin = machine.base().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
    for name in ["sh", "cat", "id", "mkdir", "chmod"] {
        symlink("busybox", bin.join(name)).unwrap();
    }
    fs::write(machine.base().join("of-base"), "").unwrap();
    // As the guest's init leaves what it mounts.
    std::os::unix::fs::chown(machine.base(), Some(1000), Some(1000)).unwrap();
    run("setfattr", &["-n", "trusted.sandpiper.given", "-v", "1", machine.base().to_str().unwrap()]);
}

#[test]
fn steps_go_on_from_a_version_and_are_known_by_their_numbers() {
    let Some(machine) = Machine::new("steps on a version", 256) else { return };
    make_base(&machine);
    let context = context(&machine, |folder| fs::write(folder.join("app.txt"), "text").unwrap());
    let steps = json!([
        {"step": "env", "env": {"WORD": "a $b \"c\""}},
        {"step": "workdir", "path": "/app"},
        {"step": "user", "name": "root"},
        {"step": "copy", "upload": "upl_1", "source": "app.txt", "target": "/app/", "mode": "640", "user": "user"},
        {"step": "run", "command": "id -u >/app/root; echo \"$WORD\" >/app/word"},
        {"step": "run", "command": "cat app.txt; exit 0", "user": "user"},
    ]);
    let build = |steps: &serde_json::Value| {
        machine.empty();
        machine.upload("upl_1", &context);
        let source = json!({"kind": "steps", "from": {"version": {"version": "ver_1"}}, "steps": steps});
        let mut order = order(source);
        order["base_settings"] = json!({"env": {"OF": "base"}, "user": "user"});
        machine.build(order)
    };

    let first = build(&steps);
    let second = build(&steps);

    let finished = first.finished();
    assert_eq!(finished["settings"]["env"]["WORD"], "a $b \"c\"");
    assert_eq!((&finished["settings"]["env"]["OF"], &finished["settings"]["user"]), (&json!("base"), &json!("root")));
    let numbers: Vec<_> = (1..=6).map(|number| (number, 6, false)).collect();
    assert_eq!(first.steps(), numbers);
    assert!(second.steps().iter().all(|(_, _, cached)| *cached), "{}", second.text);
    assert_eq!(
        machine.in_output("ls of-base; cat app/root app/word; stat -c '%a %u' app/app.txt"),
        "of-base\n0\na $b \"c\"\n640 1000\n"
    );
    assert_eq!(machine.in_output("stat -c %u .; getfattr -m- -d . 2>&1"), "0\n");

    let mut failing = steps;
    failing[4]["command"] = json!("exit 4");
    let error = build(&failing).error().clone();
    assert_eq!((error.code.as_str(), error.step), ("step_failed", Some(5)), "{}", error.message);
}

#[test]
fn archives_of_both_kinds_become_roots_and_others_are_refused() {
    let Some(machine) = Machine::new("archives", 256) else { return };
    let folder = machine.scratch("archives");
    make_base(&machine);
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs tmpfs /run && cd {0} &&
         b() {{ buildah --root {0}/root --runroot {0}/run \"$@\"; }} &&
         c=$(b from scratch) && b add $c {1} / && b config --user 7 $c && i=$(b commit -q $c) &&
         b push -q $i docker-archive:{0}/docker.tar:a && b push -q $i oci-archive:{0}/oci.tar && gzip docker.tar && zstd -q oci.tar",
        folder.display(),
        machine.base().display(),
    );
    run("unshare", &["--mount", "sh", "-c", &script]);
    fs::write(folder.join("none"), [0; 10240]).unwrap();

    for (name, good) in [("docker.tar.gz", true), ("oci.tar.zst", true), ("none", false)] {
        machine.empty();
        machine.upload("upl_1", &folder.join(name));
        let said = machine.build(order(json!({"kind": "archive", "upload": "upl_1"})));
        if good {
            assert_eq!(said.finished()["settings"]["user"], "7", "{name}");
            assert_eq!(machine.in_output("ls of-base bin/sh").lines().count(), 2, "{name}");
        } else {
            let error = said.error();
            assert!(error.code == "source_refused" && error.message.contains("docker save"), "{}", error.message);
        }
    }
}

#[test]
fn registries_that_are_not_allowed_are_not_asked() {
    let Some(machine) = Machine::new("registries", 64) else { return };
    let mut order = order(json!({"kind": "image", "reference": "registry.example/name:1"}));
    order["registries"] = json!({"allowed": ["other.example"]});

    let said = machine.build(order);

    assert_eq!(said.error().code, "source_refused", "{}", said.text);
    assert!(said.error().message.contains("only of other.example"));
    assert!(said.steps().is_empty());
}
