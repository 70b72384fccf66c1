//! The program with real disks and Debian's buildah, where a guest's init would have mounted them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sandpiper_protocol::builder::{Event, Order};
use sandpiper_protocol::template::BuildError;
use sandpiper_skip::skipped;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What a build is given in a mount namespace of its own; the rest of the machine sees nothing of it. The arguments are the
/// disks of output and cache, the folder of the base, and the program. A guest has control groups of version 2 only. At the end
/// nothing may be left that uses the disks: the agent takes them away.
const MACHINE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /srv
mkdir /srv/output /srv/cache /srv/base /srv/sbin
mount "$1" /srv/output
mount "$2" /srv/cache
mount --bind "$3" /srv/base
echo init >/srv/sbin/sandpiper-init
mount -t overlay overlay -o lowerdir=/srv/sbin:/usr/sbin /usr/sbin
mount -t tmpfs tmpfs /run
umount --recursive --lazy /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
"$4"
umount /srv/output /srv/cache
"#;

/// What is there after a build is looked at in a namespace of its own too: no test mounts anything for others.
const LOOK: &str = r#"
set -e
mount --make-rprivate /
mount "$1" /mnt
cd /mnt
eval "$2"
"#;

/// A machine's disks, which stay from one build to the next.
pub(crate) struct Machine {
    folder: TempDir,
    output: String,
    cache: String,
}

/// What a build said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) events: Vec<Event>,
    pub(crate) text: String,
}

impl Machine {
    /// `None` where builds cannot be run.
    pub(crate) fn new(test: &str, output_mib: u64) -> Option<Self> {
        let has =
            |program: &str| Path::new("/usr/bin").join(program).exists() || Path::new("/bin").join(program).exists();
        if !["buildah", "crun", "busybox"].into_iter().all(has) {
            skipped(test, "Debian's buildah, crun and busybox-static are not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let output = disk(&folder.path().join("output"), output_mib);
        let cache = disk(&folder.path().join("cache"), 512);
        fs::create_dir(folder.path().join("base")).unwrap();
        Some(Self { folder, output, cache })
    }

    /// Where the version is that steps begin with.
    pub(crate) fn base(&self) -> PathBuf {
        self.folder.path().join("base")
    }

    /// A folder of the test's own.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Sends a file, as the agent does.
    pub(crate) fn upload(&self, id: &str, file: &Path) {
        let script = format!("mkdir -p .sandpiper-uploads && cp {} .sandpiper-uploads/{id}", file.display());
        self.look(&self.output, &script);
    }

    /// Builds onto a disk that is empty but for uploads.
    pub(crate) fn build(&self, order: Value) -> Said {
        // What is no order would be refused without a word of why.
        let _: Order = serde_json::from_value(order.clone()).unwrap();
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", MACHINE, "sh", &self.output, &self.cache])
            .arg(self.base())
            .arg(env!("CARGO_BIN_EXE_sandpiper-builder"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{order}").unwrap();
        let ended = child.wait_with_output().unwrap();
        let text = String::from_utf8(ended.stdout).unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        Said { events: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), text }
    }

    /// What a script prints in the new root.
    pub(crate) fn in_output(&self, script: &str) -> String {
        self.look(&self.output, script)
    }

    /// What a script prints in the cache.
    pub(crate) fn in_cache(&self, script: &str) -> String {
        self.look(&self.cache, script)
    }

    /// Makes the output's disk anew.
    pub(crate) fn empty(&self) {
        run("mkfs.ext4", &["-q", "-F", &self.output]);
    }

    fn look(&self, disk: &str, script: &str) -> String {
        run("unshare", &["--mount", "sh", "-c", LOOK, "sh", disk, script])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for disk in [&self.output, &self.cache] {
            let _ = Command::new("losetup").args(["--detach", disk]).status();
        }
    }
}

impl Said {
    /// The last event of a build that went well.
    pub(crate) fn finished(&self) -> Value {
        match self.events.last() {
            Some(finished @ Event::Finished { .. }) => serde_json::to_value(finished).unwrap(),
            _ => panic!("{}", self.text),
        }
    }

    /// Why it did not.
    pub(crate) fn error(&self) -> &BuildError {
        match self.events.last() {
            Some(Event::Failed(error)) => error,
            _ => panic!("{}", self.text),
        }
    }

    /// Number, count and whether it was there already, of each step.
    pub(crate) fn steps(&self) -> Vec<(u32, u32, bool)> {
        let step = |event: &Event| match event {
            Event::Step { number, of, cached, .. } => Some((*number, *of, *cached)),
            _ => None,
        };
        self.events.iter().filter_map(step).collect()
    }
}

/// An order for a source, with a cache that has room for everything.
pub(crate) fn order(source: Value) -> Value {
    json!({"source": source, "cache_bytes": 1_u64 << 40})
}

/// An order to build a text in the context that was sent as `upl_1`.
pub(crate) fn dockerfile(text: &str) -> Value {
    order(json!({"kind": "dockerfile", "text": text, "context": "upl_1"}))
}

/// A context with a static shell, as a file.
pub(crate) fn context(machine: &Machine, more: impl FnOnce(&Path)) -> PathBuf {
    let folder = machine.scratch("context");
    fs::copy("/bin/busybox", folder.join("busybox")).unwrap();
    more(&folder);
    let file = machine.scratch("uploads").join("context.tar");
    run("tar", &["-C", folder.to_str().unwrap(), "-cf", file.to_str().unwrap(), "."]);
    file
}

/// A new ext4 on a loop device.
fn disk(file: &Path, mib: u64) -> String {
    File::create(file).unwrap().set_len(mib << 20).unwrap();
    let file = file.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", file]);
    run("losetup", &["--find", "--show", file]).trim().to_owned()
}

/// What a program prints.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let ended = Command::new(program).args(arguments).output().unwrap();
    assert!(ended.status.success(), "{program}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}
