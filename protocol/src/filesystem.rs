//! The messages of the data plane's `filesystem.Filesystem` service, in proto3 JSON: lower camel case, 64-bit numbers as
//! text, defaults left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::process::Empty;

/// Path before the method's name: `/filesystem.Filesystem/Stat`.
pub const SERVICE: &str = "filesystem.Filesystem";

/// Requests that only name a path: `Stat`, `MakeDir` and `Remove`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRequest {
    pub path: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveRequest {
    pub source: String,
    pub destination: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirRequest {
    pub path: String,
    /// How many levels are listed; 0 means 1.
    #[serde(skip_serializing_if = "is_default")]
    pub depth: u32,
}

/// The response of `Stat`, `MakeDir` and `Move`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryResponse {
    pub entry: EntryInfo,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<EntryInfo>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub enum FileType {
    /// A device, a pipe or a socket.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A symbolic link that leads nowhere: another has the type of what it leads to.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// What a directory says of one of its names.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct EntryInfo {
    pub name: String,
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: FileType,
    /// Absolute.
    pub path: String,
    /// In bytes.
    #[serde(with = "int64", skip_serializing_if = "is_default")]
    pub size: i64,
    /// Permission bits; of a symbolic link those of what it leads to.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: u32,
    /// The type and the permission bits as text: `drwxr-xr-x`, `Lrwxrwxrwx` for a symbolic link.
    pub permissions: String,
    /// Name of the user, or its number if it has none.
    pub owner: String,
    pub group: String,
    /// RFC 3339, in UTC.
    pub modified_time: String,
    /// Where a symbolic link leads to in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// The extended attributes `user.e2b.*`, without that prefix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// `WatchDir`, whose events are a stream, and `CreateWatcher`, whose events are asked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WatchRequest {
    pub path: String,
    /// Whether the folders below are watched too.
    #[serde(skip_serializing_if = "is_default")]
    pub recursive: bool,
    /// Whether events carry what there is at their path.
    #[serde(skip_serializing_if = "is_default")]
    pub include_entry: bool,
    /// Whether to watch a network's file system, where only what this machine changes is seen.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_network_mounts: bool,
}

/// One message of the stream of `WatchDir`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchDirResponse {
    Start(Empty),
    Filesystem(FilesystemEvent),
    Keepalive(Empty),
}

/// A watcher by its id: `GetWatcherEvents` and `RemoveWatcher`, and the response of `CreateWatcher`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Watcher {
    pub watcher_id: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetWatcherEventsResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<FilesystemEvent>,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FilesystemEvent {
    /// Relative to the watched folder; `.` is the folder itself.
    pub name: String,
    #[serde(rename = "type")]
    pub kind: EventType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Box<EntryInfo>>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub enum EventType {
    /// Made, or moved here.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// Moved away from this name.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A 64-bit number as text, because JavaScript has none.
mod int64 {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(value: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_wire_form_that_the_sdks_read() {
        let entry = EntryInfo { name: "a".into(), kind: FileType::File, size: 3, mode: 0o644, ..EntryInfo::default() };

        let wire = serde_json::to_value(&entry).unwrap();

        assert_eq!((&wire["type"], &wire["size"]), (&"FILE_TYPE_FILE".into(), &"3".into()));
        assert_eq!(wire["mode"], 0o644);
        assert!(wire.get("symlinkTarget").is_none(), "{wire}");
        assert_eq!(serde_json::from_value::<EntryInfo>(wire).unwrap(), entry);
    }

    #[test]
    fn events_have_the_wire_form_that_the_sdks_read() {
        let event = FilesystemEvent { name: "a/b".into(), kind: EventType::Chmod, entry: None };
        let wire = serde_json::to_string(&WatchDirResponse::Filesystem(event)).unwrap();
        assert_eq!(wire, r#"{"filesystem":{"name":"a/b","type":"EVENT_TYPE_CHMOD"}}"#);
        assert_eq!(serde_json::to_string(&WatchDirResponse::Start(Empty {})).unwrap(), r#"{"start":{}}"#);
        let request: WatchRequest = serde_json::from_str(r#"{"path":"/x","includeEntry":true}"#).unwrap();
        assert!(request.include_entry && !request.recursive);
    }

    #[test]
    fn what_clients_leave_out_is_the_default() {
        let list: ListDirRequest = serde_json::from_str(r#"{"path":"/x"}"#).unwrap();
        assert_eq!((list.path.as_str(), list.depth), ("/x", 0));
    }
}
