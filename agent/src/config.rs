//! The agent's configuration: a TOML file in which every key has a default.
//!
//! ```toml
//! state_dir = "/var/lib/sandpiper"
//! runtime_dir = "/run/sandpiper"
//! kernel = "/usr/lib/sandpiper/vmlinux"
//!
//! [limits]
//! max_sandboxes = 50
//!
//! [monitor_pool]
//! per_shape = 4
//!
//! [ingress]
//! listen = "127.0.0.1:7080"
//! ```

mod builds;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpiper_ingress::IngressConfig;
use sandpiper_machine::pool::UIDS;
use sandpiper_protocol::vmm::DiskLimits;
use serde::Deserialize;

pub(crate) use self::builds::Builds;
use crate::logs::Bounds;

/// Longest `runtime_dir`: a Unix socket's path is limited to 107 bytes, and at most `/sandboxes/<25>/control.sock` follows.
const MAX_RUNTIME_DIR: usize = 55;

/// Everything that can be configured.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Records, templates and disks; needs a file system with sparse files.
    pub(crate) state_dir: PathBuf,
    /// Sockets.
    pub(crate) runtime_dir: PathBuf,
    /// The `sandpiper-vmm` binary.
    pub(crate) vmm: PathBuf,
    /// Uncompressed guest kernel.
    pub(crate) kernel: PathBuf,
    /// Appended to the guest kernel's arguments.
    pub(crate) kernel_args: String,
    /// Gives every guest a serial port and keeps what it prints. For debugging: it slows the start.
    pub(crate) console: bool,
    /// Life of a data-plane access token.
    pub(crate) session_ttl_seconds: u64,
    /// From starting the monitor to a serving data plane.
    pub(crate) boot_timeout_seconds: u64,
    /// How long a monitor may take to end by itself before it is killed.
    pub(crate) stop_timeout_seconds: u64,
    /// Delete every sandbox when the agent is asked to end (SIGTERM, SIGINT). Otherwise they go on running and the next
    /// agent takes them over.
    pub(crate) stop_sandboxes_on_exit: bool,
    pub(crate) log_format: LogFormat,
    pub(crate) api_socket: ApiSocket,
    pub(crate) limits: Limits,
    pub(crate) jail: Jail,
    pub(crate) monitor_pool: MonitorPool,
    pub(crate) warm: Warm,
    pub(crate) parking: Parking,
    pub(crate) disk: DiskRates,
    pub(crate) volumes: Volumes,
    pub(crate) builds: Builds,
    pub(crate) logs: Logs,
    pub(crate) network: sandpiper_network::Config,
    pub(crate) ingress: IngressConfig,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Who may use the agent API besides root: the socket has mode 0660.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApiSocket {
    /// Numeric owner; the agent's own user without it.
    pub(crate) uid: Option<u32>,
    /// Numeric group: that of the API process.
    pub(crate) gid: Option<u32>,
    /// The same by its name, instead of `gid`.
    pub(crate) group: Option<String>,
}

/// Memory of the agent without any connection, with room for its logs and records.
const OWN_MEMORY_MB: u64 = 128;

/// Settings that had another name: the old one, and what it is called now.
const RENAMED: [(&str, &str); 1] = [("shells", "monitor_pool")];

/// What one host takes on.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Sandboxes that hold resources at the same time.
    pub(crate) max_sandboxes: u32,
    pub(crate) max_vcpus: u32,
    pub(crate) max_memory_mb: u32,
    pub(crate) max_disk_gib: u32,
    /// Memory of the host that no guest is given: the agent's own ([`Config::agent_memory_mb`]) and the system's.
    pub(crate) memory_headroom_mb: u64,
    /// Free space below which no sandbox is created.
    pub(crate) disk_headroom_mb: u64,
    /// How often the disk is promised: the disks of all sandboxes together, empty as they may be, have at most so many
    /// times its size.
    pub(crate) disk_overcommit: u32,
}

/// What keeps a monitor that was taken over by its guest from doing harm.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Jail {
    /// False only where there is nothing to protect: monitors then run as the agent's own user, without limits.
    pub(crate) enabled: bool,
    /// First of the 65,536 user ids that are given to monitors, each to one at a time. Nobody else may use them.
    pub(crate) uid_base: u32,
}

/// Monitors that wait, started and jailed, for the next create or resume.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MonitorPool {
    /// For each of the last few pairs of CPU and memory that were asked for. 0: none wait, and every start takes longer.
    pub(crate) per_shape: u32,
}

/// Snapshots of templates that have been booted already.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Warm {
    /// False: every new sandbox starts from its disk.
    pub(crate) enabled: bool,
    /// False: one that starts from its disk boots a kernel, rather than have a guest that has booted already enter it.
    pub(crate) bare: bool,
    /// False: one is made once a create would have liked to find it, and not before.
    pub(crate) ahead: bool,
    /// Most that are kept; each takes about as much disk as a booted guest uses memory.
    pub(crate) max: u32,
}

/// Machines that wait, restored from warm snapshots, to become sandboxes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Parking {
    /// Most at the same time. As many wait of a template and size as were created in the last minute. 0: none.
    pub(crate) max: u32,
    /// How long one waits after the last create.
    pub(crate) keep_seconds: u64,
}

/// Most that the disk of each sandbox does in a second; a second's worth may pass at once, what is over it waits. 0: no limit.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DiskRates {
    /// Bytes read and written.
    pub(crate) bandwidth: u64,
    /// Requests of any kind.
    pub(crate) operations: u64,
    /// What `fsync` comes to: each makes the host's file system commit its journal, for which all others wait.
    pub(crate) flushes: u64,
}

impl DiskRates {
    pub(crate) fn limits(self) -> DiskLimits {
        let limit = |rate| (rate > 0).then_some(rate);
        DiskLimits {
            bytes_per_second: limit(self.bandwidth),
            operations_per_second: limit(self.operations),
            flushes_per_second: limit(self.flushes),
        }
    }
}

impl Default for DiskRates {
    fn default() -> Self {
        Self { bandwidth: 512 << 20, operations: 20_000, flushes: 200 }
    }
}

/// Disks that outlive sandboxes, and the machines of the agent's own that work with those that no sandbox has.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Volumes {
    /// Of each new volume. It takes the space of what is written to it.
    pub(crate) size_gib: u32,
    /// Machines at the same time, each for one volume.
    pub(crate) helpers: u32,
    /// Volumes that wait for one of them.
    pub(crate) helper_queue: u32,
    pub(crate) helper_memory_mb: u32,
    /// How long one stays for the next request to the same volume.
    pub(crate) helper_keep_seconds: u64,
}

impl Default for Volumes {
    fn default() -> Self {
        Self { size_gib: 10, helpers: 4, helper_queue: 32, helper_memory_mb: 128, helper_keep_seconds: 10 }
    }
}

/// What is kept of each sandbox's log.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Logs {
    /// On the disk, of each sandbox, and as much of what its processes write; the oldest entries give way.
    pub(crate) max_kib: u32,
    /// What is taken of a guest in a second, and as many lines of what its processes write; what is beyond is dropped and counted.
    pub(crate) lines_per_second: u32,
}

impl Logs {
    pub(crate) fn bounds(self) -> Bounds {
        Bounds { bytes: u64::from(self.max_kib) * 1024, lines_per_second: self.lines_per_second }
    }
}

impl Default for Logs {
    fn default() -> Self {
        Self { max_kib: 4096, lines_per_second: 1000 }
    }
}

impl Default for Jail {
    fn default() -> Self {
        Self { enabled: true, uid_base: 0x2000_0000 }
    }
}

impl Default for MonitorPool {
    fn default() -> Self {
        Self { per_shape: 4 }
    }
}

impl Default for Warm {
    fn default() -> Self {
        Self { enabled: true, bare: true, ahead: true, max: 16 }
    }
}

impl Default for Parking {
    fn default() -> Self {
        Self { max: 8, keep_seconds: 600 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sandboxes: 100,
            max_vcpus: 16,
            max_memory_mb: 65_536,
            max_disk_gib: 512,
            memory_headroom_mb: 1536,
            disk_headroom_mb: 512,
            disk_overcommit: 100,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: "/var/lib/sandpiper".into(),
            runtime_dir: "/run/sandpiper".into(),
            vmm: sibling("sandpiper-vmm"),
            kernel: "/usr/lib/sandpiper/vmlinux".into(),
            kernel_args: String::new(),
            console: false,
            session_ttl_seconds: 3600,
            boot_timeout_seconds: 60,
            stop_timeout_seconds: 5,
            stop_sandboxes_on_exit: false,
            log_format: LogFormat::Text,
            api_socket: ApiSocket::default(),
            limits: Limits::default(),
            jail: Jail::default(),
            monitor_pool: MonitorPool::default(),
            warm: Warm::default(),
            parking: Parking::default(),
            disk: DiskRates::default(),
            volumes: Volumes::default(),
            builds: Builds::default(),
            logs: Logs::default(),
            network: sandpiper_network::Config::default(),
            ingress: IngressConfig::default(),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not a valid configuration", path.display())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("`{key}` {problem}")]
    Invalid { key: &'static str, problem: String },
}

impl Config {
    /// Reads and checks a file.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let parse = |source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) };
        let settings: toml::Table = toml::from_str(&text).map_err(parse)?;
        for (old, new) in RENAMED {
            if settings.contains_key(old) {
                return Err(ConfigError::Invalid { key: old, problem: format!("is called `{new}` now; rename it") });
            }
        }
        let mut config: Self = toml::from_str(&text).map_err(parse)?;
        config.check()?;
        config.network.meters = config.runtime_dir.join("network");
        Ok(config)
    }

    /// Checks what can be checked without the host.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, problem: String| Err(ConfigError::Invalid { key, problem });
        let paths = [
            ("state_dir", &self.state_dir),
            ("runtime_dir", &self.runtime_dir),
            ("vmm", &self.vmm),
            ("kernel", &self.kernel),
        ];
        for (key, path) in paths {
            if !path.is_absolute() {
                return invalid(key, format!("must be an absolute path, not {:?}", path.display().to_string()));
            }
        }
        if self.state_dir == self.runtime_dir {
            return invalid("runtime_dir", "must differ from `state_dir`".into());
        }
        let length = self.runtime_dir.as_os_str().len();
        if length > MAX_RUNTIME_DIR {
            return invalid(
                "runtime_dir",
                format!("is {length} bytes long; sockets below it need it to be at most {MAX_RUNTIME_DIR}"),
            );
        }
        let seconds = [
            ("session_ttl_seconds", self.session_ttl_seconds, 30 * 24 * 3600),
            ("boot_timeout_seconds", self.boot_timeout_seconds, 3600),
            ("stop_timeout_seconds", self.stop_timeout_seconds, 600),
            ("volumes.helper_keep_seconds", self.volumes.helper_keep_seconds, 3600),
        ];
        for (key, value, most) in seconds {
            if !(1..=most).contains(&value) {
                return invalid(key, format!("must be between 1 and {most} seconds, not {value}"));
            }
        }
        if !self.kernel_args.bytes().all(|byte| matches!(byte, b' '..=b'~')) || self.kernel_args.len() > 1024 {
            return invalid("kernel_args", "must be at most 1024 printable ASCII characters".into());
        }
        let counts = [
            ("limits.max_sandboxes", self.limits.max_sandboxes, 100_000),
            // A monitor's machine has at most 64.
            ("limits.max_vcpus", self.limits.max_vcpus, 64),
            ("limits.max_memory_mb", self.limits.max_memory_mb, 16 * 1024 * 1024),
            ("limits.max_disk_gib", self.limits.max_disk_gib, 16 * 1024),
            ("volumes.size_gib", self.volumes.size_gib, 16 * 1024),
            ("volumes.helpers", self.volumes.helpers, 256),
            ("volumes.helper_queue", self.volumes.helper_queue, 4096),
            ("logs.lines_per_second", self.logs.lines_per_second, 100_000),
        ];
        for (key, value, most) in counts {
            if !(1..=most).contains(&value) {
                return invalid(key, format!("must be between 1 and {most}, not {value}"));
            }
        }
        for (key, value, most) in self.builds.numbers() {
            if !(1..=most).contains(&value) {
                return invalid(key, format!("must be between 1 and {most}, not {value}"));
            }
        }
        if !(64..=1 << 20).contains(&self.logs.max_kib) {
            return invalid("logs.max_kib", format!("must be between 64 and 1048576, not {}", self.logs.max_kib));
        }
        if !(64..=16 * 1024).contains(&self.volumes.helper_memory_mb) {
            let found = self.volumes.helper_memory_mb;
            return invalid("volumes.helper_memory_mb", format!("must be between 64 and 16384, not {found}"));
        }
        let (headroom, least) = (self.limits.memory_headroom_mb, self.agent_memory_mb());
        if headroom < least {
            return invalid(
                "limits.memory_headroom_mb",
                format!(
                    "must be at least {least}, which is what the agent may use, not {headroom}; or lower \
                     ingress.requests_memory_mb, ingress.max_connections or network.proxy_memory_mb"
                ),
            );
        }
        // A monitor refuses the ids of people and services; the last two are no ids.
        if self.api_socket.gid.is_some() && self.api_socket.group.is_some() {
            return invalid(
                "api_socket.group",
                "is the name of what `api_socket.gid` is the number of: give one of them".into(),
            );
        }
        let last_base = u32::MAX - 2 - (UIDS - 1);
        if !(1000..=last_base).contains(&self.jail.uid_base) {
            let uid = self.jail.uid_base;
            return invalid("jail.uid_base", format!("must be between 1000 and {last_base}, not {uid}"));
        }
        for (key, value, most) in [
            ("monitor_pool.per_shape", self.monitor_pool.per_shape, 64),
            ("warm.max", self.warm.max, 10_000),
            ("parking.max", self.parking.max, 1000),
        ] {
            if value > most {
                return invalid(key, format!("must be at most {most}, not {value}"));
            }
        }
        Ok(())
    }

    /// Most memory that the agent takes, but for what each sandbox is guaranteed.
    pub(crate) fn agent_memory_mb(&self) -> u64 {
        let network = if self.network.enabled { self.network.proxy_memory_mb.into() } else { 0 };
        OWN_MEMORY_MB + self.ingress.most_memory_mb() + network
    }

    pub(crate) fn boot_timeout(&self) -> Duration {
        Duration::from_secs(self.boot_timeout_seconds)
    }

    pub(crate) fn stop_timeout(&self) -> Duration {
        Duration::from_secs(self.stop_timeout_seconds)
    }
}

/// A program beside this one.
fn sibling(name: &str) -> PathBuf {
    match std::env::current_exe() {
        Ok(own) => own.with_file_name(name),
        Err(_) => Path::new("/usr/bin").join(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_memory_fits_into_the_headroom() {
        let parse = |text: &str| toml::from_str::<Config>(text).unwrap();
        assert_eq!(parse("").agent_memory_mb(), 1152);
        let error = parse("limits.memory_headroom_mb = 1151").check().unwrap_err();
        assert!(error.to_string().contains("must be at least 1152"), "{error}");
        let small = "limits.memory_headroom_mb = 512\ningress.requests_memory_mb = 64\ningress.max_connections = 1024";
        parse(small).check().unwrap();
    }

    #[test]
    fn an_empty_file_is_a_valid_configuration() {
        let config: Config = toml::from_str("").unwrap();
        config.check().unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/sandpiper"));
        assert_eq!(config.vmm.file_name().unwrap(), "sandpiper-vmm");
    }

    #[test]
    fn a_misspelt_key_is_refused_by_name() {
        let error = toml::from_str::<Config>("boot_timeout = 3").unwrap_err();
        assert!(error.to_string().contains("boot_timeout"), "{error}");
    }

    #[test]
    fn a_setting_that_was_renamed_is_refused_with_its_new_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[shells]\nper_shape = 3").unwrap();
        let error = Config::read(file.path()).unwrap_err().to_string();
        assert_eq!(error, "`shells` is called `monitor_pool` now; rename it");
        std::fs::write(file.path(), "[monitor_pool]\nper_shape = 3").unwrap();
        assert_eq!(Config::read(file.path()).unwrap().monitor_pool.per_shape, 3);
    }

    #[test]
    fn a_bad_value_is_refused_with_its_key_and_range() {
        let config: Config = toml::from_str("boot_timeout_seconds = 0").unwrap();
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "`boot_timeout_seconds` must be between 1 and 3600 seconds, not 0"
        );
        let config: Config = toml::from_str("runtime_dir = \"run\"").unwrap();
        assert_eq!(config.check().unwrap_err().to_string(), "`runtime_dir` must be an absolute path, not \"run\"");
    }

    #[test]
    fn a_disk_has_limits_unless_they_are_turned_off() {
        let config: Config = toml::from_str("[disk]\nbandwidth = 0\noperations = 300").unwrap();
        let limits = config.disk.limits();
        assert_eq!((limits.bytes_per_second, limits.operations_per_second), (None, Some(300)));
        assert!(limits.flushes_per_second.is_some());
    }

    #[test]
    fn a_group_has_a_name_or_a_number() {
        let config: Config = toml::from_str("[api_socket]\ngroup = \"sandpiper\"").unwrap();
        config.check().unwrap();
        let config: Config = toml::from_str("[api_socket]\ngroup = \"sandpiper\"\ngid = 7").unwrap();
        assert!(config.check().unwrap_err().to_string().starts_with("`api_socket.group`"));
    }

    #[test]
    fn monitors_get_no_user_id_of_a_person() {
        let config: Config = toml::from_str("[jail]\nuid_base = 999").unwrap();
        assert!(config.check().unwrap_err().to_string().starts_with("`jail.uid_base` must be between 1000"));
    }

    #[test]
    fn a_runtime_folder_too_long_for_sockets_is_refused() {
        let config: Config = toml::from_str(&format!("runtime_dir = \"/{}\"", "r".repeat(60))).unwrap();
        assert!(config.check().unwrap_err().to_string().contains("at most 55"));
    }
}
