//! What becomes of a Dockerfile: the tree, the settings, what is said meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::{Machine, context, dockerfile, order, run};
use serde_json::json;

/// Two stages, and a file of each kind.
const TEXT: &str = r#"FROM scratch AS tools
COPY busybox /bin/sh
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
FROM scratch
COPY --from=tools /bin /bin
COPY --chown=7:8 files /data
ARG WORD
RUN mkdir -p /etc /made && ln /data/plain /data/hard && chmod 4711 /data/plain && echo made as $WORD
RUN dd if=/dev/zero of=/data/holes bs=1M count=8 2>/dev/null && mkfifo /made/pipe
ENV A="a b" PATH=/bin
WORKDIR /work
USER 1001:12
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["echo it"]
"#;

fn files(folder: &Path) {
    fs::create_dir(folder.join("files")).unwrap();
    fs::write(folder.join("files/plain"), "text").unwrap();
    fs::write(folder.join("ignored"), "").unwrap();
    fs::write(folder.join(".dockerignore"), "ignored\n").unwrap();
}

#[test]
fn a_dockerfile_becomes_a_root_with_what_a_sandbox_needs() {
    let Some(machine) = Machine::new("a Dockerfile's tree", 256) else { return };
    machine.upload("upl_1", &context(&machine, files));
    let mut order = dockerfile(TEXT);
    order["source"]["args"] = json!({"WORD": "asked"});

    let said = machine.build(order);

    let mut finished = said.finished();
    let image = finished["image"].take();
    assert_eq!(image.as_str().unwrap().len(), 64, "{image}");
    assert_eq!(
        finished,
        json!({
            "event": "finished",
            "image": null,
            "is_known": false,
            "settings": {"env": {"A": "a b", "PATH": "/bin"}, "workdir": "/work", "user": "1001:12"},
            "command": "/bin/sh -c 'echo it'",
            "digests": {},
        })
    );
    assert!(said.text.contains("made as asked"), "{}", said.text);
    assert_eq!(
        machine.in_output("stat -c '%n %a %u:%g %h' data/plain data/hard sbin/sandpiper-init tmp"),
        "data/plain 4711 7:8 2\ndata/hard 4711 7:8 2\nsbin/sandpiper-init 755 0:0 1\ntmp 1777 0:0 2\n"
    );
    assert_eq!(machine.in_output("stat -c '%a %u:%g' ."), "755 0:0\n");
    assert_eq!(machine.in_output("stat -c '%s %b %F' data/holes made/pipe"), "8388608 0 regular file\n0 0 fifo\n");
    assert_eq!(
        machine.in_output("cat sbin/sandpiper-init; grep -c : etc/passwd; ls -A | grep sandpiper | wc -l"),
        "init\n2\n0\n"
    );
    assert_eq!(
        machine.in_output("getfattr --absolute-names -m- -d . 2>&1"),
        "",
        "nothing of the volume that it was is left"
    );
}

#[test]
fn the_same_dockerfile_built_by_plain_buildah_is_the_same_tree() {
    let Some(machine) = Machine::new("trees compared", 256) else { return };
    machine.upload("upl_1", &context(&machine, files));
    machine.build(dockerfile(TEXT)).finished();
    let storage = machine.scratch("plain");
    fs::write(storage.join("Dockerfile"), TEXT).unwrap();
    let list = r"find . -xdev ! -type d -printf '%p %y %m %U:%G %s %n %l\n' | sort";
    let ours = machine.in_output(list);

    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs tmpfs /run && umount --recursive --lazy /sys/fs/cgroup &&
         mount -t cgroup2 cgroup2 /sys/fs/cgroup && cd {0} &&
         b() {{ buildah --root {0}/root --runroot {0}/run \"$@\"; }} &&
         b build -q --network=host --runtime-flag=cgroup-manager=disabled -t plain -f Dockerfile {1} >&2 &&
         cd $(b mount $(b from plain)) && {list}",
        storage.display(),
        machine.scratch("context").display(),
    );
    let theirs = run("unshare", &["--mount", "sh", "-c", &script]);

    // What a sandbox needs besides is all that differs.
    let added: Vec<_> = ours.lines().filter(|line| !theirs.lines().any(|other| other == *line)).collect();
    let missing: Vec<_> = theirs.lines().filter(|line| !ours.lines().any(|other| other == *line)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let names: Vec<_> = added.iter().filter_map(|line| line.split(' ').next()).collect();
    let expected = [
        "./etc/group",
        "./etc/passwd",
        "./etc/shadow",
        "./sbin/halt",
        "./sbin/init",
        "./sbin/poweroff",
        "./sbin/reboot",
        "./sbin/sandpiper-init",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_second_build_uses_the_first_ones_steps_and_a_small_cache_is_kept_small() {
    let Some(machine) = Machine::new("the cache", 256) else { return };
    let context = context(&machine, |_| ());
    let text = "FROM scratch\nCOPY busybox /bin/sh\nRUN [\"/bin/sh\", \"-c\", \"echo > /made\"]\n";
    let build = |cache_bytes: u64| {
        machine.empty();
        machine.upload("upl_1", &context);
        let mut order = dockerfile(text);
        order["cache_bytes"] = json!(cache_bytes);
        let said = machine.build(order);
        said.finished();
        said.steps()
    };

    let (first, second) = (build(1 << 40), build(0));
    let third = build(1 << 40);

    assert_eq!(first, [(1, 3, false), (2, 3, false), (3, 3, false)]);
    assert_eq!(second, first, "a cache without room is emptied before");
    assert_eq!(third, first, "and after");
    assert_eq!(build(1 << 40), [(1, 3, false), (2, 3, true), (3, 3, true)]);

    let mut order = dockerfile(text);
    machine.empty();
    machine.upload("upl_1", &context);
    let image = machine.build(order.clone()).finished()["image"].take();
    order["known"] = json!([image]);
    machine.empty();
    machine.upload("upl_1", &context);
    assert_eq!(machine.build(order).finished()["is_known"], true);
    assert_eq!(machine.in_output("ls -d bin || true"), "", "it was written again");
    let ids = machine.in_cache("grep -o '\"id\"' storage/overlay-images/images.json | wc -l");
    assert_eq!(ids.trim(), "2");
}

#[test]
fn secrets_are_there_for_their_step_and_nowhere_else() {
    let Some(machine) = Machine::new("secrets", 256) else { return };
    machine.upload("upl_1", &context(&machine, |_| ()));
    let run = r#"RUN --mount=type=secret,id=token ["/bin/sh", "-c", "read T </run/secrets/token; echo saw $T; echo ${#T} >/length"]
RUN --mount=type=secret,id=token ["/busybox", "sh", "-c", "/busybox grep ' /run/secrets/token ' /proc/self/mountinfo >/mounted; /busybox env >/env"]"#;
    let mut order = dockerfile(&format!("FROM scratch\nCOPY busybox /bin/sh\nCOPY busybox /busybox\n{run}\n"));
    order["source"]["secrets"] = json!({"token": "hunter2hunter2"});

    let said = machine.build(order);
    said.finished();

    assert!(said.text.contains("saw ***") && !said.text.contains("hunter2"), "{}", said.text);
    assert_eq!(machine.in_output("cat length; grep -r hunter2 . | wc -l"), "14\n0\n");
    let mounted = machine.in_output("cat mounted env");
    assert!(mounted.contains(" - tmpfs ") && !mounted.contains("SECRET"), "it was on a disk: {mounted}");
    assert_eq!(machine.in_cache("grep -r hunter2 . | wc -l"), "0\n");
}

#[test]
fn what_fails_says_which_step_and_why() {
    let Some(machine) = Machine::new("failures", 24) else { return };
    let context = context(&machine, |folder| symlink("/etc/passwd", folder.join("Linked")).unwrap());
    machine.upload("upl_1", &context);
    let failed = |source| {
        let said = machine.build(order(source));
        (said.error().code.clone(), said.error().step, said.error().message.clone())
    };
    let build = |text: &str| failed(json!({"kind": "dockerfile", "context": "upl_1", "text": text}));
    let shell = "FROM scratch\nCOPY busybox /bin/sh\n";

    let (code, step, message) = build(&format!("{shell}RUN [\"/bin/sh\", \"-c\", \"exit 3\"]\n"));
    assert_eq!((code.as_str(), step), ("step_failed", Some(3)), "{message}");
    assert!(message.ends_with("failed: exit status 3"), "{message}");

    let (code, step, _) =
        build(&format!("{shell}RUN [\"/bin/sh\", \"-c\", \"echo No space left on device; exit 3\"]\n"));
    assert_eq!((code.as_str(), step), ("step_failed", Some(3)), "whatever its program says of a disk");

    let (code, _, message) = build("FROM scratch\nCOPY busybox /busybox\n");
    assert!(code == "no_shell" && message.contains("has no /bin/sh"), "{message}");

    let (code, _, message) = build(&format!("{shell}USER web\n"));
    assert!(code == "source_refused" && message.contains("\"web\""), "{message}");

    let (code, _, message) = failed(json!({"kind": "dockerfile", "context": "upl_1", "path": "Linked"}));
    assert!(code == "source_refused" && !message.contains("root:"), "{message}");

    let fill = |bytes| {
        format!("{shell}COPY busybox /bin/head\nRUN [\"/bin/sh\", \"-c\", \"head -c {bytes} /dev/urandom >/large\"]\n")
    };
    let (code, step, message) = build(&fill(60_000_000));
    assert_eq!((code.as_str(), step), ("disk_full", None), "the new root is too small: {message}");
    machine.empty();
    machine.upload("upl_1", &context);
    let (code, step, message) = build(&fill(600_000_000));
    assert_eq!((code.as_str(), step), ("disk_full", Some(4)), "the cache is too small: {message}");
    machine.empty();
    machine.upload("upl_1", &context);
    let (code, step, message) = build(&format!(
        "{shell}COPY busybox /busybox\nRUN [\"/busybox\", \"fallocate\", \"-l\", \"4G\", \"/large\"]\n"
    ));
    assert_eq!((code.as_str(), step), ("disk_full", Some(4)), "so is it for what is only reserved: {message}");
}
