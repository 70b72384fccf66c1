//! Starting a machine: its files, and the request that has a monitor boot or restore it.
//!
//! The order is what makes it safe to be killed anywhere: the files, in folders that are named after the sandbox; then the
//! record, which names them and the monitor; then the request. A folder without a record is nobody's, a monitor that no
//! record names is killed, and a layer is never written to before the record says that it is one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandpiper_durable as durable;
use sandpiper_images::layers::{self, Files, Layer, LayerError, Role};
use sandpiper_images::snapshots::Pin;
use sandpiper_images::templates::{Pin as VersionPin, Template};
use sandpiper_machine::MachinePaths;
use sandpiper_protocol::guest::BARE;
use sandpiper_protocol::vmm::{DiskConfig, DiskLimits, MachineConfig, Request, RestoreConfig, Shape};

use super::LaunchError;
use super::network::Tap;
use crate::config::Config;
use crate::paths;

/// What a machine is made from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A template's disk, linked: booted.
    Template { template: Box<Template>, _pin: Option<Arc<VersionPin>> },
    /// Likewise, by a guest that leaves it again: it is to be a bare one.
    Leaving { template: Box<Template>, _pin: Option<Arc<VersionPin>> },
    /// A template's disk, linked: entered by a bare guest, which is restored from what is in another folder.
    Entering { template: Box<Template>, _pin: Option<Arc<VersionPin>>, folder: PathBuf, bare: Files },
    /// What is in another folder, linked: restored if there is a state among it, else booted.
    Snapshot { folder: PathBuf, files: Files, _pin: Option<Arc<Pin>> },
    /// What is in the machine's own folder already: restored if there is a state among it, unless `cold`.
    Own { files: Files, cold: bool },
}

/// Everything that a monitor is given with the request that starts the machine.
#[derive(Debug)]
pub(super) struct Parts {
    what: What,
    disk_size: u64,
    /// Bottom first; the last one is writable.
    disk: Vec<File>,
    vsock: OwnedFd,
    /// Added before the request is made.
    tap: Option<Tap>,
    console: Option<File>,
    /// See [`RestoreConfig::tells_touched`].
    tells_touched: bool,
}

#[derive(Debug)]
enum What {
    /// `bare`: its guest leaves the disk.
    Boot { kernel: File, bare: bool },
    /// `enters`: the disk is another than the guest had.
    Restore { state: File, memory: Vec<File>, working_set: Option<File>, enters: bool },
}

impl Source {
    /// Whether the guest stays one without a disk.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving { .. })
    }
}

/// Makes the files of a machine in the folders `paths`, among them a new, empty layer on top of its disk. Returns what is
/// in the folder then, for the record; an own snapshot is still whole in it. Cleans nothing up on failure. Blocks.
pub(super) fn prepare(
    config: &Config,
    paths: &MachinePaths,
    source: &Source,
    disk_gib: u32,
) -> Result<(Files, Parts), LaunchError> {
    let failed = |what| move |source| LaunchError::Host { what, source };
    paths::create_dir(&paths.state, 0o700).map_err(failed("create the sandbox's folder"))?;
    paths::create_dir(&paths.runtime, 0o700).map_err(failed("create the sandbox's runtime folder"))?;
    let (mut files, from, cold) = match source {
        Source::Template { template, .. } | Source::Leaving { template, .. } => {
            let mut files = Files::default();
            let disk = template.link(&paths.state, || files.new_name(Role::Disk))?;
            files.disk = disk;
            (files, &paths.state, true)
        }
        Source::Entering { template, folder, bare, .. } => {
            let mut files = bare.clone();
            files.disk.clear();
            link_memory(&files, folder, paths)?;
            let disk = template.link(&paths.state, || files.new_name(Role::Disk))?;
            files.disk = disk;
            (files, folder, false)
        }
        Source::Snapshot { folder, files, .. } => {
            link_memory(files, folder, paths)?;
            (files.clone(), folder, false)
        }
        Source::Own { files, cold } => (files.clone(), &paths.state, *cold),
    };
    let what = match &files.state {
        Some(state) if !cold => What::Restore {
            state: layers::open(&from.join(state))?,
            memory: open_all(&files.memory, &paths.state)?,
            working_set: files.working_set.as_ref().map(|name| layers::open(&from.join(name))).transpose()?,
            enters: matches!(source, Source::Entering { .. }),
        },
        _ => {
            let kernel = File::open(&config.kernel);
            let kernel = kernel.map_err(failed("open the guest kernel (`kernel` in the configuration)"))?;
            What::Boot { kernel, bare: source.is_leaving() }
        }
    };
    // A machine has a console, or not, from its boot on.
    let has_console = if matches!(what, What::Boot { .. }) { config.console } else { files.console };
    if !matches!(source, Source::Own { .. }) {
        // Not linked: it is needed for this start only.
        files.state = None;
        files.console = has_console;
    }

    let mut disk = layers::open_disk(&files.disk, &paths.state, disk_gib)?;
    let disk_size = layers::disk_size(disk_gib);
    let top = files.new_name(Role::Disk);
    disk.push(layers::create(&paths.file(&top), disk_size)?);
    files.disk.push(Layer::own(top));

    let listen = || {
        durable::remove_file(&paths.vsock_socket())?;
        UnixListener::bind(paths.vsock_socket())
    };
    let vsock = listen().map_err(failed("create the vsock socket"))?.into();
    let console = has_console.then(|| append(&paths.console_log())).transpose();
    let console = console.map_err(failed("create the console's log"))?;
    Ok((files, Parts { what, disk_size, disk, vsock, tap: None, console, tells_touched: false }))
}

/// Links what a machine is restored from, but for its state.
fn link_memory(files: &Files, folder: &Path, paths: &MachinePaths) -> Result<(), LayerError> {
    files.link_layers(folder, &paths.state)?;
    // This restore's pages are those of the next ones, of what becomes of the machine, too.
    match &files.working_set {
        Some(name) => layers::link(&folder.join(name), &paths.file(name)),
        None => Ok(()),
    }
}

fn open_all(layers: &[Layer], folder: &Path) -> Result<Vec<File>, LayerError> {
    layers.iter().map(|layer| layers::open(&folder.join(&layer.name))).collect()
}

/// A file that is only ever appended to, so that it can be cut while its writer has it open.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

impl Parts {
    /// Gives the machine a network device with this tap.
    pub(super) fn connect(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// Has a restored machine's monitor tell which pages it touches.
    pub(super) fn tell_touched(&mut self) {
        self.tells_touched = true;
    }

    /// The request that starts the machine, and its descriptors in the order of the protocol.
    pub(super) fn request(
        &self,
        shape: Shape,
        config: &Config,
        disk_limits: DiskLimits,
    ) -> (Request, Vec<BorrowedFd<'_>>) {
        let layers = count(self.disk.len());
        let net = self.tap.as_ref().map(|tap| tap.config);
        let mut fds = Vec::new();
        let request = match &self.what {
            What::Boot { kernel, bare } => {
                fds.push(kernel.as_fd());
                let kernel_args = config.kernel_args.clone();
                Request::Boot(MachineConfig {
                    vcpus: shape.vcpus,
                    memory_mib: shape.memory_mib,
                    kernel_args: if *bare { format!("{kernel_args} {BARE}=1") } else { kernel_args },
                    disks: vec![DiskConfig {
                        serial: layers::ROOT_SERIAL.to_owned(),
                        size: self.disk_size,
                        layers,
                        read_only: false,
                    }],
                    disk_limits,
                    net,
                    console: self.console.is_some(),
                })
            }
            What::Restore { state, memory, working_set, enters } => {
                fds.push(state.as_fd());
                fds.extend(memory.iter().map(AsFd::as_fd));
                fds.extend(working_set.iter().map(AsFd::as_fd));
                Request::Restore(RestoreConfig {
                    memory_layers: count(memory.len()),
                    working_set: working_set.is_some(),
                    tells_touched: self.tells_touched,
                    disk_layers: vec![layers],
                    disk_sizes: if *enters { vec![self.disk_size] } else { Vec::new() },
                    disk_limits,
                    net,
                    console: self.console.is_some(),
                })
            }
        };
        fds.extend(self.disk.iter().map(AsFd::as_fd));
        fds.push(self.vsock.as_fd());
        fds.extend(self.tap.iter().map(|tap| tap.fd.as_fd()));
        fds.extend(self.console.iter().map(AsFd::as_fd));
        (request, fds)
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use sandpiper_protocol::agent::{RuntimeBaseline, TemplateVersion};
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    const SHAPE: Shape = Shape { vcpus: 1, memory_mib: 256 };

    struct Host {
        folder: tempfile::TempDir,
        config: Config,
    }

    impl Host {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let kernel = folder.path().join("vmlinux");
            fs::write(&kernel, b"kernel").unwrap();
            fs::write(folder.path().join("root.ext4"), b"image").unwrap();
            Self { folder, config: Config { kernel, ..Config::default() } }
        }

        fn paths(&self, name: &str) -> MachinePaths {
            let at = |what: &str| self.folder.path().join(what).join(name);
            MachinePaths { state: at("state"), runtime: at("run") }
        }

        fn template(&self) -> Source {
            let version = TemplateVersion {
                id: "ver1".into(),
                slug: "base".into(),
                digest: String::new(),
                key: None,
                created_at: Timestamp::UNIX_EPOCH,
                baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
                team: None,
                disk_gib: 0,
                settings: Default::default(),
                start: None,
                command: None,
                images: Default::default(),
                retained_bytes: 0,
            };
            let disk = vec![Layer { name: "root.ext4".into(), shared: true }];
            Source::Template {
                template: Box::new(Template { version, folder: self.folder.path().to_owned(), disk }),
                _pin: None,
            }
        }

        /// The files of a machine that was started from the template and paused then.
        fn paused(&self, name: &str) -> Files {
            let paths = self.paths(name);
            let (mut files, _) = prepare(&self.config, &paths, &self.template(), 1).unwrap();
            files.memory = vec![Layer::own(files.new_name(Role::Memory))];
            files.state = Some(files.new_name(Role::State));
            for name in files.names().into_iter().filter(|name| !name.starts_with("disk")) {
                fs::write(paths.file(name), name).unwrap();
            }
            files
        }
    }

    #[test]
    fn a_template_is_booted_from_its_image_and_a_layer_of_the_machines_own() {
        let host = Host::new();
        let paths = host.paths("one");

        let (files, parts) = prepare(&host.config, &paths, &host.template(), 1).unwrap();
        let (request, fds) = parts.request(SHAPE, &host.config, DiskLimits::default());

        let Request::Boot(config) = request else { panic!("not booted") };
        assert_eq!((config.disks[0].layers, config.disks[0].size, config.console), (2, 1 << 30, false));
        // Kernel, two layers, vsock.
        assert_eq!(fds.len(), 4);
        assert!(files.disk[0].shared && !files.disk[1].shared);
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&paths.file(&files.disk[0].name)), inode(&host.folder.path().join("root.ext4")));
    }

    #[test]
    fn a_snapshot_is_restored_with_a_new_layer_on_top_and_its_state_stays_where_it_is() {
        let host = Host::new();
        let snapshot = host.paused("one");
        let source = Source::Snapshot { folder: host.paths("one").state, files: snapshot.clone(), _pin: None };

        let (files, parts) = prepare(&host.config, &host.paths("two"), &source, 1).unwrap();
        // What is allowed now, whatever it was when the snapshot was taken.
        let disk_limits = DiskLimits { flushes_per_second: Some(9), ..DiskLimits::default() };
        let (request, fds) = parts.request(SHAPE, &host.config, disk_limits);

        let expected = RestoreConfig {
            memory_layers: 1,
            working_set: false,
            tells_touched: false,
            disk_layers: vec![3],
            disk_sizes: Vec::new(),
            disk_limits,
            net: None,
            console: false,
        };
        assert!(matches!(request, Request::Restore(config) if config == expected));
        // State, memory, three layers, vsock.
        assert_eq!(fds.len(), 6);
        assert_eq!(files.disk[..2], snapshot.disk[..]);
        assert_eq!((files.memory, files.state), (snapshot.memory, None));
    }

    #[test]
    fn the_working_set_goes_along_with_what_is_restored_for_its_next_restores() {
        let host = Host::new();
        let mut snapshot = host.paused("one");
        let name = snapshot.new_name(Role::WorkingSet);
        fs::write(host.paths("one").file(&name), b"pages").unwrap();
        snapshot.working_set = Some(name.clone());
        let source = |files| Source::Snapshot { folder: host.paths("one").state, files, _pin: None };

        let (files, parts) = prepare(&host.config, &host.paths("two"), &source(snapshot.clone()), 1).unwrap();
        let (request, fds) = parts.request(SHAPE, &host.config, DiskLimits::default());
        assert!(matches!(request, Request::Restore(config) if config.working_set) && fds.len() == 7);
        assert_eq!(files.working_set, Some(name.clone()));
        assert_eq!(fs::read(host.paths("two").file(&name)).unwrap(), b"pages");

        let (files, _) = prepare(&host.config, &host.paths("three"), &source(snapshot.disk_only()), 1).unwrap();
        assert_eq!(files.working_set, None);
    }

    #[test]
    fn the_disk_of_a_snapshot_alone_is_booted() {
        let host = Host::new();
        let files = host.paused("one").disk_only();
        let source = Source::Snapshot { folder: host.paths("one").state, files, _pin: None };

        let (files, parts) = prepare(&host.config, &host.paths("two"), &source, 2).unwrap();

        assert!(
            matches!(parts.request(SHAPE, &host.config, DiskLimits::default()).0, Request::Boot(config) if config.disks[0].layers == 3)
        );
        assert!(files.memory.is_empty() && files.state.is_none());
    }

    #[test]
    fn an_own_snapshot_stays_whole_while_it_is_resumed_warm_or_cold() {
        let host = Host::new();
        let paused = host.paused("one");
        let paths = host.paths("one");
        for cold in [false, true] {
            let (files, parts) =
                prepare(&host.config, &paths, &Source::Own { files: paused.clone(), cold }, 1).unwrap();
            assert_eq!(matches!(parts.request(SHAPE, &host.config, DiskLimits::default()).0, Request::Boot(_)), cold);
            assert_eq!((&files.state, &files.memory), (&paused.state, &paused.memory));
            assert_eq!(files.disk[..2], paused.disk[..]);
            paused.remove_others(&paths.state).unwrap();
        }
    }

    #[test]
    fn a_snapshot_that_went_away_is_an_error_of_its_files() {
        let host = Host::new();
        let files = host.paused("one");
        let source = Source::Snapshot { folder: host.folder.path().join("gone"), files, _pin: None };
        let error = prepare(&host.config, &host.paths("two"), &source, 1).unwrap_err();
        assert!(matches!(error, LaunchError::Disk(LayerError::Link { .. })), "{error}");
    }
}
