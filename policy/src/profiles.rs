//! The operator's profiles: lists of entries that have names.
//!
//! ```json
//! {"profiles": {"package-registries": ["registry.example.test:443", "*.mirror.example.test"]}}
//! ```
//!
//! The same in TOML is `[profiles]` with one list a name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::document::{Format, Unique};
use crate::entry::{Entry, EntryError};
use crate::policy::MAX_ENTRIES;

/// Largest file, with room for every entry at its longest.
const MAX_FILE: u64 = 4 << 20;
const MAX_PROFILES: usize = 256;
const MAX_NAME: usize = 64;

/// Profiles by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profiles(BTreeMap<String, Vec<Entry>>);

/// Why profiles cannot be used.
#[derive(Debug, Error)]
pub enum ProfilesError {
    #[error("Cannot read the profiles from {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("Profiles must be less than {MAX_FILE} bytes")]
    FileTooLarge,
    #[error("The profiles are not JSON of the form {{\"profiles\": {{\"NAME\": [\"host:port\", …]}}}}")]
    Json(#[source] serde_json::Error),
    #[error("The profiles are not TOML of the form `[profiles]` with lines NAME = [\"host:port\", …]")]
    Toml(#[source] toml::de::Error),
    #[error("{0:?} cannot name a profile: use 1 to {MAX_NAME} of the letters a-z, A-Z, 0-9, `-`, `_` and `.`")]
    Name(String),
    #[error("There are {0} profiles; {MAX_PROFILES} are possible")]
    TooManyProfiles(usize),
    #[error("Profile {0} has more than {MAX_ENTRIES} entries")]
    TooManyEntries(String),
    #[error("Entry {} of profile {profile}", index + 1)]
    Entry {
        profile: String,
        /// From 0.
        index: usize,
        source: EntryError,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    profiles: Unique<Vec<String>>,
}

impl Profiles {
    /// Reads a file in either [`Format`]. Blocks.
    ///
    /// # Errors
    /// A file that cannot be read, and what [`Self::from_json`] and [`Self::from_toml`] refuse.
    pub fn read(path: &Path) -> Result<Self, ProfilesError> {
        let failed = |source| ProfilesError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        File::open(path).map_err(failed)?.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
        match Format::of(path, &text) {
            Format::Json => Self::from_json(&text),
            Format::Toml => Self::from_toml(&text),
        }
    }

    /// Reads profiles from a JSON document: `{"profiles": {NAME: [ENTRY, ...]}}`.
    ///
    /// # Errors
    /// A document that is too long, of another shape, or has a name, an entry or a number of them that is not valid.
    pub fn from_json(text: &str) -> Result<Self, ProfilesError> {
        check_size(text)?;
        serde_json::from_str(text).map_err(ProfilesError::Json).and_then(Self::new)
    }

    /// Reads profiles from a TOML document: a table `profiles` with a list of entries for each name.
    ///
    /// # Errors
    /// As [`Self::from_json`].
    pub fn from_toml(text: &str) -> Result<Self, ProfilesError> {
        check_size(text)?;
        toml::from_str(text).map_err(ProfilesError::Toml).and_then(Self::new)
    }

    fn new(document: Document) -> Result<Self, ProfilesError> {
        let Unique(profiles) = document.profiles;
        if profiles.len() > MAX_PROFILES {
            return Err(ProfilesError::TooManyProfiles(profiles.len()));
        }
        let profiles = profiles.into_iter().map(|(name, texts)| {
            if !is_name(&name) {
                return Err(ProfilesError::Name(name.chars().take(MAX_NAME).collect()));
            }
            if texts.len() > MAX_ENTRIES {
                return Err(ProfilesError::TooManyEntries(name));
            }
            let entries = texts.iter().enumerate().map(|(index, text)| {
                text.parse().map_err(|source| ProfilesError::Entry { profile: name.clone(), index, source })
            });
            Ok((name.clone(), entries.collect::<Result<_, _>>()?))
        });
        Ok(Self(profiles.collect::<Result<_, _>>()?))
    }

    /// In the order of the alphabet.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn get(&self, name: &str) -> Option<&[Entry]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

/// A file that [`Profiles::read`] cut off is as long as the limit.
fn check_size(text: &str) -> Result<(), ProfilesError> {
    if text.len() as u64 >= MAX_FILE { Err(ProfilesError::FileTooLarge) } else { Ok(()) }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"profiles": {"b": ["*.example.test:443", "198.51.100.7"], "a": []}}"#;
    const TOML: &str = "[profiles]\nb = [\"*.example.test:443\", \"198.51.100.7\"]\na = []\n";

    #[test]
    fn json_and_toml_say_the_same() {
        let profiles = Profiles::from_json(JSON).unwrap();
        assert_eq!(profiles, Profiles::from_toml(TOML).unwrap());
        assert_eq!(profiles.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(profiles.get("b").unwrap()[0].to_string(), "*.example.test:443");
        assert_eq!(profiles.get("c"), None);
    }

    #[test]
    fn a_file_is_read_by_its_name_or_else_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("p.json", JSON), ("p.toml", TOML), ("json", JSON), ("toml", TOML)] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            assert_eq!(Profiles::read(&path).unwrap(), Profiles::from_json(JSON).unwrap(), "{name}");
        }
        let large = folder.path().join("large");
        std::fs::write(&large, " ".repeat(usize::try_from(MAX_FILE).unwrap() + 1)).unwrap();
        assert!(matches!(Profiles::read(&large), Err(ProfilesError::FileTooLarge)));
        assert!(matches!(Profiles::read(&folder.path().join("none")), Err(ProfilesError::Read { .. })));
    }

    #[test]
    fn a_mistake_is_found_by_its_profile_and_entry() {
        let error = Profiles::from_json(r#"{"profiles": {"a": ["x.test", "https://x.test"]}}"#).unwrap_err();
        assert_eq!(error.to_string(), "Entry 2 of profile a");
        assert!(matches!(error, ProfilesError::Entry { index: 1, .. }));
        for text in ["{}", "[]", "", r#"{"profiles": {}, "profile": {}}"#, r#"{"profiles": {"a": "x.test"}}"#] {
            assert!(matches!(Profiles::from_json(text), Err(ProfilesError::Json(_))), "{text}");
        }
        for text in [
            r#"{"profiles": {"a": ["x.test"], "b": [], "a": []}}"#,
            r#"{"profiles": {"a": ["x.test"]}, "profiles": {"a": []}}"#,
        ] {
            assert!(matches!(Profiles::from_json(text), Err(ProfilesError::Json(_))), "given twice: {text}");
        }
        for text in ["[profiles]\na = [\"x.test\"]\na = []\n", "[profiles]\n[profiles]\n"] {
            assert!(matches!(Profiles::from_toml(text), Err(ProfilesError::Toml(_))), "given twice: {text}");
        }
        for name in ["", "a b", "a\"b", "ü", &"a".repeat(65)] {
            let text = serde_json::json!({"profiles": {name: []}}).to_string();
            assert!(matches!(Profiles::from_json(&text), Err(ProfilesError::Name(_))), "{name}");
        }
    }
}
