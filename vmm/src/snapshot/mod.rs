//! Machines as files: what is in them ([`state`]) and in which form ([`format`]).
//!
//! What is written when, and in which order it is put back, is in [`machine::save`](crate::machine) and
//! [`machine::restore`](crate::machine): the memory has its own files, see [`memory`](crate::memory).

pub(crate) mod format;
pub(crate) mod state;

pub use format::{FormatError, Origin};

/// Whether `bytes` are a machine's state that could be used here. For fuzzing.
pub fn check_state(bytes: &[u8]) -> Result<(), FormatError> {
    format::decode::<state::State>(bytes, format::Kind::State).map(drop)
}

/// A file of this host and monitor with this content, of which nothing is checked. For fuzzing.
#[cfg(any(test, fuzzing))]
pub fn with_header(content: &[u8]) -> Vec<u8> {
    format::seal(content)
}
