//! Ids by what they name, so that the compiler tells them apart where two stand side by side.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id;

/// The id of a team: `team…`, as [`id`] makes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TeamId(String);

impl TeamId {
    /// A new one.
    pub fn generate() -> Self {
        Self(id::generate("team"))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One that was stored, or sent by somebody who knows.
impl<T: Into<String>> From<T> for TeamId {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for TeamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
