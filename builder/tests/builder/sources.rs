//! Sources other than Dockerfiles.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use sandpiper_skip::skipped;
use serde_json::json;

use crate::registry::{HOST, Registry};
use crate::support::{Machine, Said, context, order, run};

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
fn a_version_whose_users_are_a_pipe_is_refused() {
    let Some(machine) = Machine::new("a pipe of users", 256) else { return };
    make_base(&machine);
    fs::create_dir(machine.base().join("etc")).unwrap();
    run("mkfifo", &[machine.base().join("etc/passwd").to_str().unwrap()]);
    let source = json!({"kind": "steps", "from": {"version": {"version": "ver_1"}}, "steps": []});

    let said = machine.build(order(source));

    let error = said.error();
    assert!(error.code == "source_refused" && error.message.contains("/etc/passwd"), "{}", error.message);
}

#[test]
fn steps_of_any_length_are_done_to_their_end() {
    let Some(machine) = Machine::new("long steps", 256) else { return };
    make_base(&machine);
    let part = "# \\$\"é #";
    let (command, value) = (part.repeat(6500), part.repeat(5500));
    let steps = json!([
        {"step": "user", "name": "root"},
        {"step": "run", "command": format!("cat >/written <<'END'\n{command}\nEND\n")},
        {"step": "env", "env": {"A": "1", "LONG": value, "Z": "2"}},
        {"step": "run", "command": "printf '%s\\n' \"$LONG\" >/variable; echo $A $Z >/others"},
    ]);
    let source = json!({"kind": "steps", "from": {"version": {"version": "ver_1"}}, "steps": steps});

    let said = machine.build(order(source));

    assert_eq!(said.finished()["settings"]["env"]["LONG"], value);
    assert_eq!(said.steps().len(), 4);
    assert!(machine.in_output("cat written") == format!("{command}\n"), "the command is another");
    assert_eq!(machine.in_output("cat others"), "1 2\n");
    assert!(machine.in_output("cat variable") == format!("{value}\n"), "the variable is another");
}

fn build(machine: &Machine, archive: &Path) -> Said {
    machine.empty();
    machine.upload("upl_1", archive);
    machine.build(order(json!({"kind": "archive", "upload": "upl_1"})))
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
         b push -q $i docker-archive:{0}/docker.tar:a && b push -q $i oci-archive:{0}/oci.tar &&
         cp oci.tar linked.tar && ln -s /usr/bin linked && tar -rf linked.tar linked && gzip docker.tar && zstd -q oci.tar &&
         b config --onbuild 'COPY /etc/hostname /stolen' $c && i=$(b commit -q --format docker $c) &&
         b push -q $i docker-archive:{0}/onbuild.tar:a",
        folder.display(),
        machine.base().display(),
    );
    run("unshare", &["--mount", "sh", "-c", &script]);
    fs::write(folder.join("none"), [0; 10240]).unwrap();

    // What an image would have run by the next build is not run, least of all out here.
    for name in ["docker.tar.gz", "oci.tar.zst", "onbuild.tar"] {
        let said = build(&machine, &folder.join(name));
        assert_eq!(said.finished()["settings"]["user"], "7", "{name}");
        assert_eq!(machine.in_output("ls -d of-base bin/sh stolen 2>/dev/null || true").lines().count(), 2, "{name}");
    }
    for (name, why) in [("none", "docker save"), ("linked.tar", "links")] {
        let said = build(&machine, &folder.join(name));
        let error = said.error();
        assert!(error.code == "source_refused" && error.message.contains(why), "{name}: {}", error.message);
    }
}

/// buildah wrote all other images of the tests.
#[test]
fn images_of_umoci_and_skopeo_become_roots() {
    let test = "umoci";
    let (Some(machine), Some(registry)) = (Machine::new(test, 256), Registry::start(test)) else { return };
    if !["/usr/bin/umoci", "/usr/bin/skopeo"].into_iter().all(|path| Path::new(path).exists()) {
        return skipped(test, "Debian's umoci and skopeo are not installed");
    }
    let folder = machine.scratch("umoci");
    make_base(&machine);
    let script = format!(
        "cd {} && umoci init --layout layout && umoci new --image layout:one && umoci insert --image layout:one {} / &&
         umoci config --image layout:one --config.user 7 && tar -C layout -cf oci.tar oci-layout index.json blobs &&
         c() {{ skopeo --insecure-policy copy --quiet --dest-tls-verify=false oci:layout:one $1; }} &&
         c docker-archive:docker.tar:one && c docker://{}/umoci:1",
        folder.display(),
        machine.base().display(),
        registry.address(),
    );
    run("sh", &["-c", &script]);
    let mut of_registry = order(json!({"kind": "image", "reference": format!("{HOST}/umoci:1")}));
    of_registry["registries"] = registry.settings();
    let archives = ["oci.tar", "docker.tar"].map(|name| build(&machine, &folder.join(name)).finished());
    machine.empty();

    for finished in archives.into_iter().chain([machine.build(of_registry).finished()]) {
        assert_eq!(finished["settings"]["user"], "7");
    }
    assert_eq!(machine.in_output("ls -d of-base bin/sh").lines().count(), 2);
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
