//! `[builds]`: versions of templates that are built on this host.

use sandpiper_protocol::builder::Registries;
use serde::Deserialize;

const DAY: u64 = 24 * 3600;

/// Versions of templates that are built here.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Builds {
    /// Machines that build at the same time; one of each team.
    pub(crate) at_once: u32,
    /// Of each team's cache, from its first build on. It takes the space of what is in it.
    pub(crate) cache_gib: u32,
    /// What builds may ask for images, and how.
    pub(crate) registries: Registries,
    /// First starts of versions, for their warm snapshots, at the same time.
    pub(crate) warming: u32,
    /// How long the start command of a version may take to come up.
    pub(crate) start_seconds: u64,
    /// Most seconds that a build may ask for.
    pub(crate) max_seconds: u64,
    /// Most bytes of one log.
    pub(crate) max_log_bytes: u64,
    /// How long a build that has ended is remembered, with its log.
    pub(crate) keep_seconds: u64,
    /// Most bytes of one upload.
    pub(crate) max_upload_mb: u64,
    /// How long an upload is kept after it was sent or used last.
    pub(crate) upload_keep_seconds: u64,
}

impl Builds {
    /// Every number by its key, with the most that it may be; the least is 1.
    pub(super) fn numbers(&self) -> [(&'static str, u64, u64); 9] {
        [
            ("builds.at_once", self.at_once.into(), 256),
            ("builds.cache_gib", self.cache_gib.into(), 16 * 1024),
            ("builds.warming", self.warming.into(), 64),
            ("builds.start_seconds", self.start_seconds, 3600),
            ("builds.max_seconds", self.max_seconds, 7 * DAY),
            ("builds.max_log_bytes", self.max_log_bytes, 1 << 30),
            ("builds.keep_seconds", self.keep_seconds, 366 * DAY),
            ("builds.max_upload_mb", self.max_upload_mb, 1 << 20),
            ("builds.upload_keep_seconds", self.upload_keep_seconds, 366 * DAY),
        ]
    }
}

impl Default for Builds {
    fn default() -> Self {
        Self {
            at_once: 2,
            cache_gib: 20,
            registries: Registries::default(),
            warming: 2,
            start_seconds: 300,
            max_seconds: 6 * 3600,
            max_log_bytes: 16 << 20,
            keep_seconds: 7 * DAY,
            max_upload_mb: 8192,
            upload_keep_seconds: DAY,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn registries_are_named_by_their_hosts_and_numbers_are_bounded() {
        let text = r#"
            [builds.registries]
            allowed = ["registry.example"]
            [builds.registries.mirrors]
            "registry.example" = "mirror.example/cache"
            [builds.registries.credentials."mirror.example"]
            username = "builder"
            password = "hunter2"
        "#;
        let config: Config = toml::from_str(text).unwrap();
        config.check().unwrap();
        let registries = &config.builds.registries;
        assert_eq!(registries.mirrors["registry.example"], "mirror.example/cache");
        assert_eq!(registries.credentials["mirror.example"].username, "builder");
        assert!(!format!("{config:?}").contains("hunter2"));

        for (key, _, most) in config.builds.numbers() {
            let name = key.strip_prefix("builds.").unwrap();
            for value in [0, most + 1] {
                let config: Config = toml::from_str(&format!("[builds]\n{name} = {value}")).unwrap();
                let error = config.check().unwrap_err().to_string();
                assert_eq!(error, format!("`{key}` must be between 1 and {most}, not {value}"));
            }
        }
    }
}
