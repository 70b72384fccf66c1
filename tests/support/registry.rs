//! A registry of the tests' own, in their own internet, and plain buildah beside it: the outside world of builds.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::internet::{Internet, REGISTRY};

/// How sandboxes and Dockerfiles name it; it speaks HTTP.
pub const HOST: &str = "registry.example.test:5000";
/// A small Debian with a shell, coreutils and Python. It takes a minute to make: [`Registry::with_base`] does.
pub const BASE: &str = "registry.example.test:5000/debian:12";
/// Much smaller: busybox under all its names, `bash` among them.
pub const SMALL: &str = "registry.example.test:5000/busybox:1";
/// What makes these.
const SMALL_ROOT: &str = include_str!("small_root.sh");
const DEBIAN_ROOT: &str = include_str!("debian_root.sh");
/// What buildah remembers of layers, for every store of the machine. Nothing needs it.
const BLOB_CACHE: &str = "/var/lib/containers/cache/blob-info-cache-v1.boltdb";
/// How long the registry may take to come up.
const START: Duration = Duration::from_secs(120);

/// The registry of this process, with [`SMALL`] in it.
pub struct Registry {
    /// Where buildah keeps its images, and trees that it made.
    folder: PathBuf,
    base: Once,
}

impl Registry {
    /// Started on first use.
    pub fn shared() -> &'static Self {
        static REGISTRY: OnceLock<Registry> = OnceLock::new();
        REGISTRY.get_or_init(Self::start)
    }

    /// As [`Registry::shared`], with [`BASE`] in it, too.
    pub fn with_base() -> &'static Self {
        let registry = Self::shared();
        registry.base.call_once(|| registry.push_base());
        registry
    }

    fn start() -> Self {
        // Not in memory: images are large. It is removed with the host's folders by the next run.
        let folder = Path::new(crate::host::STATE_DIR).with_file_name("tests-registry");
        // A test that failed may have left a root mounted.
        let _ = Command::new("umount")
            .args(["--quiet", "--recursive", "--lazy"])
            .arg(folder.join("store/overlay"))
            .status();
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder for images");
        // In the nested host it is the machine's own, which others there change meanwhile; buildah makes another.
        let _ = fs::remove_file(BLOB_CACHE);
        let registry = Self { folder, base: Once::new() };
        registry.serve();
        registry.push_small();
        registry
    }

    fn serve(&self) {
        let settings = self.folder.join("registry.yml");
        let storage = self.folder.join("registry");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {storage:?}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: \"{REGISTRY}:5000\"}}\n"
        );
        fs::write(&settings, text).expect("a file");
        let mut command = Internet::shared().command(Path::new("docker-registry"));
        command.arg("serve").arg(&settings).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
        }
        // It gets its signal when the thread that started it ends: this one lasts as long as it.
        std::thread::spawn(move || {
            let mut child = command.spawn().expect("docker-registry is installed");
            let _ = child.wait();
        });
        let address = format!("{REGISTRY}:5000").parse().expect("an address");
        let give_up_at = Instant::now() + START;
        while std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            assert!(Instant::now() < give_up_at, "the registry is not up after {} s", START.as_secs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn push_small(&self) {
        let root = self.folder.join("small");
        run(Command::new("bash").args(["-c", SMALL_ROOT, "small_root.sh"]).arg(&root));
        self.import(&root, SMALL, &["--cmd", "/bin/sh"]);
        fs::remove_dir_all(&root).expect("the tree is ours");
        self.push(SMALL);
    }

    fn push_base(&self) {
        let archive = base_tree().expect("scripts/base-template has left its packages");
        let root = self.folder.join("debian");
        run(Command::new("bash").args(["-c", DEBIAN_ROOT, "debian_root.sh"]).arg(&archive).arg(&root));
        self.import(&root, BASE, &["--cmd", "/bin/bash", "--env", "LANG=C.UTF-8"]);
        fs::remove_dir_all(&root).expect("the tree is ours");
        self.push(BASE);
    }

    /// Makes an image of a tree, with these settings.
    pub fn import(&self, root: &Path, name: &str, settings: &[&str]) {
        let container = self.out(&["from", "scratch"]);
        run(self.buildah(&["add", "--quiet", container.trim()]).arg(root).arg("/"));
        run(self.buildah(&["config"]).args(settings).arg(container.trim()));
        run(&mut self.buildah(&["commit", "--quiet", "--rm", container.trim(), name]));
    }

    /// Sends an image that buildah has to the registry, under its own name.
    pub fn push(&self, name: &str) {
        let there = name.replace(HOST, &format!("{REGISTRY}:5000"));
        run(&mut self.buildah(&["push", "--quiet", "--tls-verify=false", name, &format!("docker://{there}")]));
    }

    /// Writes an image that buildah has into a file, of the kind `oci-archive` or `docker-archive`.
    pub fn save(&self, name: &str, kind: &str, file: &Path) {
        run(&mut self.buildah(&["push", "--quiet", name, &format!("{kind}:{}", file.display())]));
    }

    /// Builds a folder as anybody would with buildah, into the image `name`.
    pub fn build(&self, context: &Path, name: &str) {
        self.build_with(&[], context, name);
    }

    /// As [`Registry::build`], with more options.
    pub fn build_with(&self, options: &[&str], context: &Path, name: &str) {
        let own = ["bud", "--quiet", "--format", "docker", "--network", "none", "--tag", name];
        run(self.buildah(&own).args(options).arg(context));
    }

    /// Reads an image from a file that [`Registry::save`] wrote, and gives its id.
    pub fn load(&self, kind: &str, file: &Path) -> String {
        self.out(&["pull", "--quiet", &format!("{kind}:{}", file.display())]).trim().to_owned()
    }

    /// Runs `work` on the root of an image, which buildah makes.
    pub fn with_root<T>(&self, name: &str, work: impl FnOnce(&Path) -> T) -> T {
        let container = self.out(&["from", "--pull-never", name]);
        let root = self.out(&["mount", container.trim()]);
        let outcome = work(Path::new(root.trim()));
        run(&mut self.buildah(&["rm", container.trim()]));
        outcome
    }

    /// Forgets an image, but not what the registry has.
    pub fn remove(&self, name: &str) {
        run(&mut self.buildah(&["rmi", "--force", name]));
    }

    fn out(&self, arguments: &[&str]) -> String {
        run(&mut self.buildah(arguments))
    }

    /// Buildah with a store of its own, of the kind that is Debian's default.
    fn buildah(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command
            .args(["--storage-driver", "overlay", "--root"])
            .arg(self.folder.join("store"))
            .arg("--runroot")
            .arg(self.folder.join("run"))
            .args(arguments)
            .env("BUILDAH_ISOLATION", "chroot")
            .env("TMPDIR", &self.folder);
        command
    }
}

/// The newest of the trees that scripts/base-template keeps.
fn base_tree() -> io::Result<PathBuf> {
    let cache =
        std::env::var_os("SANDPIPER_CACHE").map_or_else(|| PathBuf::from("/var/cache/sandpiper"), PathBuf::from);
    let trees = fs::read_dir(cache.join("templates"))?.filter_map(|entry| Some(entry.ok()?.path()));
    let trees = trees.filter(|path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("root-") && name.ends_with(".tar.zst"))
    });
    trees
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What a command prints, which must succeed.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
