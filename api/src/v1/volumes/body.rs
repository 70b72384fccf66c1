//! Volumes and what is in them as JSON, and the parameters that requests on them share.

use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::volume::{EntryKind, VolumeEntry, check_path};
use serde::Serialize;
use utoipa::ToSchema;

use crate::agent_client::volumes::Attributes;
use crate::store::teams::Team;
use crate::store::volumes::{State, VolumeRow};

/// Longest name of a volume.
pub const MAX_NAME: usize = 63;
/// Largest mode: what `chmod` takes.
const MAX_MODE: u32 = 0o7777;

/// A volume.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Volume)]
pub struct VolumeBody {
    #[schema(example = "vol06f3kq8z2m1c9w0v5t7b4a")]
    pub id: String,
    /// Of one volume of the team only; what `volume_mounts` names.
    #[schema(example = "models")]
    pub name: String,
    /// Slug of the team that owns it.
    pub team: String,
    /// What it may grow to; until then it holds of the host's disk what is in it.
    #[schema(example = 10)]
    pub size_gib: u32,
    pub state: StateBody,
    /// Bytes of disk that it holds.
    pub retained_bytes: u64,
    pub created_at: Timestamp,
    /// When it is to be deleted, by the days that the team's plan keeps one that nobody uses; null: it is kept.
    pub expires_at: Option<Timestamp>,
    /// The live sandbox that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "sbx06f3kq8z2m1c9w0v5t7b4a")]
    pub attached_to: Option<String>,
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VolumeState)]
pub enum StateBody {
    Creating,
    Ready,
    /// The host has lost it: it cannot be mounted, and keeps its name until it is deleted.
    Failed,
    /// It is being deleted, also where the host was away when it was asked.
    Deleting,
}

impl VolumeBody {
    /// `row`, a volume of `team`.
    pub fn new(team: &Team, row: VolumeRow) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name,
            team: team.slug.clone(),
            size_gib: row.size_gib,
            state: match row.state {
                State::Creating => StateBody::Creating,
                State::Ready => StateBody::Ready,
                State::Failed => StateBody::Failed,
                // A deleted volume is 404 before it gets here.
                State::Deleting | State::Deleted => StateBody::Deleting,
            },
            retained_bytes: row.retained_bytes,
            created_at: row.created_at,
            expires_at: row.expires_at,
            attached_to: row.attached_to.map(|sandbox| sandbox.to_string()),
        }
    }
}

/// Something in a volume.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = VolumeEntry)]
pub struct EntryBody {
    /// From the volume's root.
    #[schema(example = "/models/small.bin")]
    pub path: String,
    pub kind: KindBody,
    /// Bytes.
    pub size: u64,
    /// Octal text of four digits.
    #[schema(example = "0644")]
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    pub modified_at: Timestamp,
    /// What a symbolic link says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What something in a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VolumeEntryKind)]
pub enum KindBody {
    File,
    Directory,
    Symlink,
    /// A device, a FIFO or a socket.
    Other,
}

impl From<VolumeEntry> for EntryBody {
    fn from(entry: VolumeEntry) -> Self {
        Self {
            path: entry.path,
            kind: match entry.kind {
                EntryKind::File => KindBody::File,
                EntryKind::Directory => KindBody::Directory,
                EntryKind::Symlink => KindBody::Symlink,
                EntryKind::Other => KindBody::Other,
            },
            size: entry.size,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            modified_at: entry.modified_at,
            target: entry.target,
        }
    }
}

/// Checks the name of a new volume.
///
/// # Errors
///
/// 400.
pub fn check_name(name: &str) -> Result<(), ApiError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed) && !name.starts_with('.') {
        return Ok(());
    }
    let reason = format!("must have 1 to {MAX_NAME} letters, digits, `-`, `_` or `.`, and not begin with a dot");
    Err(ApiError::invalid_field("name", reason))
}

/// Checks a path in a volume.
///
/// # Errors
///
/// 400 on `field`.
pub fn checked_path(field: &str, path: String) -> Result<String, ApiError> {
    match check_path(&path) {
        Ok(()) => Ok(path),
        Err(reason) => Err(ApiError::invalid_field(field, reason.to_string())),
    }
}

/// Octal text, such as `0644`, as four digits.
///
/// # Errors
///
/// 400 on anything else.
pub fn checked_mode(mode: &str) -> Result<String, ApiError> {
    let is_octal = (1..=4).contains(&mode.len()) && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    if is_octal {
        Ok(format!("{mode:0>4}"))
    } else {
        Err(ApiError::invalid_field("mode", "must be octal text, such as 0644"))
    }
}

/// A mode that was given as a number, as octal text.
///
/// # Errors
///
/// 400 on one that is none.
pub fn octal(mode: u32) -> Result<String, ApiError> {
    if mode > MAX_MODE {
        return Err(ApiError::invalid_field("mode", format!("must be from 0 to {MAX_MODE}")));
    }
    Ok(format!("{mode:04o}"))
}

/// The parameters `path`, `mode`, `uid` and `gid` of a request, as far as it takes them.
#[derive(Debug, Default)]
pub struct PathQuery {
    path: Option<String>,
    pub attributes: Attributes,
}

impl PathQuery {
    /// Takes a parameter over; false when it is none of these.
    ///
    /// # Errors
    ///
    /// 400 on a value that is none, and on a path that is given twice.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, ApiError> {
        match name {
            "path" if self.path.is_some() => return Err(ApiError::invalid_field("path", "is given twice")),
            "path" => self.path = Some(checked_path("path", value.to_owned())?),
            "mode" => self.attributes.mode = Some(checked_mode(value)?),
            "uid" => self.attributes.uid = Some(number("uid", value)?),
            "gid" => self.attributes.gid = Some(number("gid", value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The parameters of a request that takes `path` and no others.
    ///
    /// # Errors
    ///
    /// 400 on others, and without a path.
    pub fn only_path(query: Pairs) -> Result<String, ApiError> {
        Self::of(query, &["path"])?.path()
    }

    /// The parameters of a request that takes `known`.
    ///
    /// # Errors
    ///
    /// 400 on others.
    pub fn of(Pairs(pairs): Pairs, known: &[&str]) -> Result<Self, ApiError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            if !known.contains(&name.as_str()) || !query.take(&name, &value)? {
                return Err(unknown(&name));
            }
        }
        Ok(query)
    }

    /// Whether none of them is given.
    pub fn is_empty(&self) -> bool {
        let Attributes { mode, uid, gid } = &self.attributes;
        self.path.is_none() && mode.is_none() && uid.is_none() && gid.is_none()
    }

    /// The path.
    ///
    /// # Errors
    ///
    /// 400 without one.
    pub fn path(&self) -> Result<String, ApiError> {
        self.path.clone().ok_or_else(|| ApiError::invalid_field("path", "is required"))
    }
}

/// A number of a user or group.
///
/// # Errors
///
/// 400.
pub fn number(field: &str, text: &str) -> Result<u32, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_field(field, "must be a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "models", "A-b_c.9", "-x", &"x".repeat(63)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".hidden", "a/b", "a b", "é", &"x".repeat(64)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn modes_are_octal_text() {
        assert_eq!(checked_mode("644").unwrap(), "0644");
        assert_eq!(checked_mode("1777").unwrap(), "1777");
        for mode in ["", "8", "0o644", "00644", "-1"] {
            assert!(checked_mode(mode).is_err(), "{mode}");
        }
        assert_eq!(octal(0o755).unwrap(), "0755");
        assert!(octal(0o10000).is_err());
    }
}
