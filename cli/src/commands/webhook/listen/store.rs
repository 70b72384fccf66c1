//! Where deliveries are kept: a folder with a file for each, named by its key.
//!
//! The file system is the index: a key was received when its file is there. So nothing has to be read at the start,
//! concurrent duplicates become one file, and two receivers may share a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sandpiper_durable::{self as durable, Access};

/// Bytes of a file's name, less the ending.
const NAME_BYTES: usize = 250;

/// The folder.
pub(super) struct Store {
    folder: PathBuf,
}

/// The name of a delivery's file, made of its `Idempotency-Key`: every key has a name of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileName(String);

/// Why there is no name for a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    #[error("The Idempotency-Key is empty or not made of visible ASCII characters")]
    NotVisible,
    #[error("The Idempotency-Key is too long")]
    TooLong,
}

/// What became of a delivery that is on the disk now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    New,
    /// It was there before. Its first body stays.
    Duplicate,
}

impl Store {
    /// Makes the folder where missing. Removes what a receiver that was killed did not finish.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let folder = std::path::absolute(folder)?;
        let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        fs::create_dir_all(&folder)?;
        missing.into_iter().try_for_each(durable::sync_parent)?;
        durable::remove_unfinished(&folder)?;
        Ok(Self { folder })
    }

    /// Keeps `body` under its key's name. When this returns, a file of that name survives a power cut.
    pub(super) fn keep(&self, name: &FileName, body: &[u8]) -> io::Result<Kept> {
        let made = durable::create_atomic(&self.folder.join(&name.0), Access::PRIVATE, body)?;
        Ok(if made { Kept::New } else { Kept::Duplicate })
    }
}

impl FileName {
    /// The key itself with `.json` behind it, where it has nothing but letters, digits, `-`, `_` and inner dots; anything
    /// else is percent-encoded.
    pub(super) fn of(key: &[u8]) -> Result<Self, KeyError> {
        if key.is_empty() || !key.iter().all(u8::is_ascii_graphic) {
            return Err(KeyError::NotVisible);
        }
        let mut name = String::new();
        for &byte in key {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
                b'.' if !name.is_empty() => name.push('.'),
                other => name.push_str(&format!("%{other:02X}")),
            }
        }
        if name.len() > NAME_BYTES {
            return Err(KeyError::TooLong);
        }
        Ok(Self(name + ".json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> String {
        FileName::of(key.as_bytes()).unwrap().0
    }

    #[test]
    fn a_key_names_a_file_of_the_folder_and_of_no_other() {
        assert_eq!(name("dlv_0123456789abcdef"), "dlv_0123456789abcdef.json");
        assert_eq!(name("a.b"), "a.b.json");
        assert_eq!(name("../../etc/passwd"), "%2E.%2F..%2Fetc%2Fpasswd.json");
        assert_eq!(name("."), "%2E.json");
        assert_eq!(name("%2E"), "%252E.json");
    }

    #[test]
    fn what_is_no_key_has_no_name() {
        for key in [&b""[..], b"a b", b"a\n", b"\xff", b"\0"] {
            assert_eq!(FileName::of(key), Err(KeyError::NotVisible), "{key:?}");
        }
        assert!(FileName::of(&[b'a'; NAME_BYTES]).is_ok());
        assert_eq!(FileName::of(&[b'a'; NAME_BYTES + 1]), Err(KeyError::TooLong));
        assert_eq!(FileName::of(&[b'/'; NAME_BYTES / 3 + 1]), Err(KeyError::TooLong));
    }

    #[test]
    fn a_duplicate_is_recognised_after_a_restart_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inner/store");
        let name = FileName::of(b"dlv_1").unwrap();

        assert_eq!(Store::open(&path).unwrap().keep(&name, b"first").unwrap(), Kept::New);
        assert_eq!(Store::open(&path).unwrap().keep(&name, b"second").unwrap(), Kept::Duplicate);

        assert_eq!(fs::read(path.join("dlv_1.json")).unwrap(), b"first");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }
}
