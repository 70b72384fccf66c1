//! A registry of the test's own, and plain buildah beside it: the outside world of builds.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use sandpiper_skip::skipped;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::run;

/// How Dockerfiles name it; it speaks HTTP.
pub(crate) const HOST: &str = "registry.example.test:5000";

/// A small Debian with a shell, coreutils and Python, of the packages of this machine.
const BASE: &str = "registry.example.test:5000/debian:12";

/// What makes that.
const DEBIAN_ROOT: &str = include_str!("../../../tests/support/debian_root.sh");

/// One of the files that this takes of Debian 12's packages.
const DEBIAN_12: &str = "/var/lib/dpkg/info/python3.11-minimal.list";

/// Plain buildah, with the storage that is its default, in a mount namespace of its own, as no test mounts anything for others.
/// The arguments are its folder and a script. A guest has control groups of version 2 only, and so has this.
const PLAIN: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
umount --recursive --lazy /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd "$1"
buildah() { command buildah --storage-driver overlay --root "$PWD/store" --runroot /run/containers/storage "$@"; }
eval "$2"
"#;

/// With [`BASE`] in it, which plain buildah has too.
pub(crate) struct Registry {
    folder: TempDir,
    program: Child,
    /// Where it listens.
    address: String,
}

impl Registry {
    /// `None` where there can be none.
    pub(crate) fn start(test: &str) -> Option<Self> {
        if !["/usr/bin/docker-registry", DEBIAN_12].into_iter().all(|path| Path::new(path).exists()) {
            skipped(test, "Debian 12's docker-registry and python3 are not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let (program, address) = serve(folder.path());
        let registry = Self { folder, program, address };
        registry.push_base();
        Some(registry)
    }

    fn push_base(&self) {
        let root = self.folder.path().join("debian");
        run("bash", &["-c", DEBIAN_ROOT, "debian_root.sh", "/", root.to_str().unwrap()]);
        self.buildah(&format!(
            "made=$(buildah from scratch)
             buildah add --quiet $made debian /
             buildah config --cmd /bin/bash --env LANG=C.UTF-8 $made
             buildah commit --quiet --rm $made {BASE}
             buildah push --quiet --tls-verify=false {BASE} docker://{}/debian:12",
            self.address
        ));
        fs::remove_dir_all(root).unwrap();
    }

    /// Has the base's name stand for another image.
    pub(crate) fn push_other_base(&self) {
        self.buildah(&format!(
            "made=$(buildah from --pull-never {BASE})
             buildah config --env LANG=C $made
             buildah commit --quiet --rm $made {BASE}
             buildah push --quiet --tls-verify=false {BASE} docker://{}/debian:12",
            self.address
        ));
    }

    /// Where it is for programs of this machine.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// What an order says of registries so that it is asked.
    pub(crate) fn settings(&self) -> Value {
        json!({"mirrors": {HOST: self.address}, "insecure": [HOST]})
    }

    /// Builds a folder as anybody would with buildah, and says what `script` prints in the new root. As with Docker, each step
    /// is a layer of its own.
    pub(crate) fn in_root_of(&self, context: &Path, script: &str) -> String {
        self.buildah(&format!(
            "buildah build --quiet --layers --format docker --network host --runtime-flag cgroup-manager=disabled \
                 --tag built {} >&2
             cd $(buildah mount $(buildah from --pull-never built))
             {script}",
            context.display()
        ))
    }

    fn buildah(&self, script: &str) -> String {
        run("unshare", &["--mount", "bash", "-c", PLAIN, "bash", self.folder.path().to_str().unwrap(), script])
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Starts it on a port that was free, and waits until it listens.
fn serve(folder: &Path) -> (Child, String) {
    let settings = folder.join("registry.yml");
    let storage = folder.join("registry");
    let text = format!(
        "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {storage:?}}}}}\nhttp: {{addr: \"127.0.0.1:0\"}}\n"
    );
    fs::write(&settings, text).unwrap();
    // It ends with the thread that starts it, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "docker-registry", "serve"]).arg(settings);
    let mut program = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap());
    let mut said = String::new();
    let address = loop {
        let read = log.read_line(&mut said).unwrap();
        assert!(read > 0, "the registry does not start: {said}");
        let listening = said.split_once("listening on ").and_then(|(_, address)| address.split_once('"'));
        if let Some((address, _)) = listening {
            break address.to_owned();
        }
    };
    // Nobody reads the rest, and it must not wait for that.
    thread::spawn(move || io::copy(&mut log, &mut io::sink()));
    (program, address)
}
