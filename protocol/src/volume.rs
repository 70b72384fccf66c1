//! Volumes, as the API process asks the agent for them: part of [`agent`](crate::agent).
//!
//! | request | body | response |
//! |---|---|---|
//! | `PUT /volumes/{id}` | | 201 [`Volume`], 200 when it is there already |
//! | `GET /volumes` | | [`VolumeList`] |
//! | `GET /volumes/{id}` | | [`Volume`] |
//! | `DELETE /volumes/{id}` | | 204 once its bytes are free |
//!
//! What follows is for volumes that no sandbox has (409 `volume_attached` otherwise); a machine of the agent's own does it.
//! `path` is absolute, percent-encoded, without `.`, `..` and NUL, at most 4,096 bytes; it begins at the volume's root.
//!
//! | request | body | response |
//! |---|---|---|
//! | `GET /volumes/{id}/files?path` | | 200, the file's bytes, with `Content-Length`; `Range` as HTTP has it |
//! | `PUT /volumes/{id}/files?path&mode&uid&gid` | the file's bytes | 200 [`VolumeEntry`] once they are on stable storage; parents are made |
//! | `DELETE /volumes/{id}/files?path` | | 204 |
//! | `GET /volumes/{id}/directories?path&depth&limit&after` | | [`VolumeDirectory`] |
//! | `POST /volumes/{id}/directories?path&mode&uid&gid` | | 201 [`VolumeEntry`], 200 when it is there; parents are made |
//! | `GET /volumes/{id}/path?path` | | [`VolumeEntry`], of the link itself where it is one |
//! | `PATCH /volumes/{id}/path?path` | [`ChangePath`] | [`VolumeEntry`] |
//! | `DELETE /volumes/{id}/path?path` | | 204 once it, and all that is in it, is gone; 202 where that takes long: to be asked again, which goes on with it |
//!
//! Symbolic links in a path are followed as if the volume's root were `/`, but for the last name of `PUT`, `DELETE` and
//! `/path`, which mean the link itself. New files have mode 0644 and new directories 0755, and belong to 1000:1000, where the
//! query does not say otherwise. `depth` is 1 at least and [`MAX_DEPTH`] at most; `limit` is [`MAX_LIMIT`] at most and where
//! it is left out; a page may be shorter than that.
//!
//! Errors besides those of the agent: 400 `invalid_request`, 404 `not_found`; 409 `conflict` (something of another kind is in
//! the way); 409 `volume_attached`, and `volume_busy` (something holds it and goes
//! on doing so); 413 and 507 `volume_full`; 422 `volume_damaged` (its file system cannot be used, and why).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{SandboxId, VolumeId};

/// Most volumes of one sandbox.
pub const MOST_MOUNTS: usize = crate::vmm::EXTRA_DISKS as usize;

/// Slug of the template whose guests serve volumes that no sandbox has. It is the agent's own: no tenant sees it.
pub const HELPER_TEMPLATE: &str = "volume-helper";

/// Longest path in a volume, in bytes: without its first slash and with a zero byte the kernel's `PATH_MAX`.
pub const MAX_PATH: usize = 4096;

/// Most levels of directories in one list, and entries in one page of it.
pub const MAX_DEPTH: u32 = 32;
pub const MAX_LIMIT: usize = 1000;

/// Longest path that a volume is mounted at, in bytes.
pub const MAX_MOUNT_PATH: usize = 1024;

/// Longest name in a path, in bytes: ext4's.
const MAX_NAME: usize = 255;

/// Nothing is mounted here or anywhere below: these are the kernel's, and PID 1's own.
const KERNEL_FOLDERS: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/var/run"];

/// Nothing is mounted here, since it would hide what every program of the sandbox is made of. Below it is free.
const SYSTEM_FOLDERS: [&str; 12] =
    ["/", "/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr", "/usr/bin", "/usr/lib", "/usr/sbin"];

/// What is wrong with a path. Each follows the path's name in a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("must begin with /")]
    Relative,
    #[error("must have at most {0} bytes")]
    Long(usize),
    #[error("must not have names of more than {MAX_NAME} bytes")]
    LongName,
    #[error("must not have `.`, `..` or empty names in it, nor a slash at its end")]
    NotPlain,
    #[error("must not have control characters")]
    Control,
    #[error("must not be a folder that the system's programs are in")]
    System,
    #[error("must not be in /dev, /proc, /run or /sys")]
    Kernel,
}

/// Whether `path` names something in a volume: `/` alone is its root.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_path(path: &str) -> Result<(), PathError> {
    if path.len() > MAX_PATH {
        return Err(PathError::Long(MAX_PATH));
    }
    let names = path.strip_prefix('/').ok_or(PathError::Relative)?;
    if path.contains('\0') {
        return Err(PathError::Control);
    }
    if names.is_empty() {
        return Ok(());
    }
    names.split('/').try_for_each(|name| match name {
        "" | "." | ".." => Err(PathError::NotPlain),
        name if name.len() > MAX_NAME => Err(PathError::LongName),
        _ => Ok(()),
    })
}

/// Whether a volume may be mounted at `path` of a sandbox.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_mount_path(path: &str) -> Result<(), PathError> {
    if path.len() > MAX_MOUNT_PATH {
        return Err(PathError::Long(MAX_MOUNT_PATH));
    }
    check_path(path)?;
    if path.contains(char::is_control) {
        return Err(PathError::Control);
    }
    if SYSTEM_FOLDERS.contains(&path) {
        return Err(PathError::System);
    }
    let is_in = |folder| path.strip_prefix(folder).is_some_and(|rest: &str| rest.is_empty() || rest.starts_with('/'));
    if KERNEL_FOLDERS.into_iter().any(is_in) {
        return Err(PathError::Kernel);
    }
    Ok(())
}

/// A volume of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    pub volume: VolumeId,
    /// As [`check_mount_path`] wants it; no two mounts of a sandbox have the same.
    pub path: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Volume {
    pub id: VolumeId,
    /// What a file system on it may hold, and its own bookkeeping.
    pub size_bytes: u64,
    /// Bytes of this host's disk that are its own.
    pub retained_bytes: u64,
    /// The live sandbox that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_to: Option<SandboxId>,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeList {
    pub volumes: Vec<Volume>,
    /// Ids of volumes that exist, and whose records nobody can read: they are to be left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// Something in a volume.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Of the volume's root.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    /// Octal text of four digits.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    pub modified_at: Timestamp,
    /// What a symbolic link says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    /// A device, a FIFO or a socket.
    Other,
}

/// What is in a directory, by name.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeDirectory {
    pub entries: Vec<VolumeEntry>,
    /// `after` of the next page, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What is left out stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ChangePath {
    /// Octal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Where it moves: refused with 409 where something is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub move_to: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_volume_is_absolute_and_plain() {
        for path in ["/", "/a", "/a b/.c/..d", "/etc/passwd", "/line\nbreak"] {
            assert_eq!(check_path(path), Ok(()), "{path:?}");
        }
        assert_eq!(check_path(""), Err(PathError::Relative));
        assert_eq!(check_path("a"), Err(PathError::Relative));
        for path in ["//", "/a/", "/a//b", "/.", "/a/../b", "/a/.."] {
            assert_eq!(check_path(path), Err(PathError::NotPlain), "{path:?}");
        }
        assert_eq!(check_path("/a\0b"), Err(PathError::Control));
        assert_eq!(check_path(&format!("/{}", "n".repeat(255))), Ok(()));
        assert_eq!(check_path(&format!("/{}", "n".repeat(256))), Err(PathError::LongName));
        assert_eq!(check_path(&"/n".repeat(MAX_PATH / 2)), Ok(()));
        assert_eq!(check_path(&"/n".repeat(MAX_PATH / 2 + 1)), Err(PathError::Long(MAX_PATH)));
    }

    #[test]
    fn a_volume_hides_neither_the_system_nor_the_kernels_folders() {
        for path in ["/data", "/home/user", "/usr/local", "/etc/app", "/mnt/a/b", "/devices", "/var/runs"] {
            assert_eq!(check_mount_path(path), Ok(()), "{path}");
        }
        for path in ["/", "/etc", "/usr", "/usr/sbin", "/lib64"] {
            assert_eq!(check_mount_path(path), Err(PathError::System), "{path}");
        }
        for path in ["/dev", "/dev/shm", "/proc/1", "/run/sandpiper", "/sys/fs/cgroup", "/var/run/a"] {
            assert_eq!(check_mount_path(path), Err(PathError::Kernel), "{path}");
        }
        assert_eq!(check_mount_path("/data/../etc"), Err(PathError::NotPlain));
        assert_eq!(check_mount_path("/line\nbreak"), Err(PathError::Control));
        assert_eq!(check_mount_path(&"/n".repeat(MAX_MOUNT_PATH)), Err(PathError::Long(MAX_MOUNT_PATH)));
    }
}
