//! Machines as files: what is in them ([`state`]) and in which format ([`format`]).
//!
//! What is written when, and in which order it is put back, is in [`machine::save`](crate::machine) and
//! [`machine::restore`](crate::machine): the memory has its own files, see [`memory`](crate::memory).

pub(crate) mod format;
#[cfg(test)]
pub(crate) mod golden;
pub(crate) mod state;
mod version3;
mod version4;

pub use format::{FormatError, Origin};

/// The machine's state in `bytes`, written anew. For fuzzing.
///
/// # Errors
/// As for a snapshot that is restored: `bytes` are none, or not one for this host.
#[cfg(fuzzing)]
pub fn rewrite(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let state: state::State = format::decode(bytes)?;
    format::encode(&Origin::here(), &state)
}

/// A file of this host and monitor with this content, of which nothing is checked. For fuzzing.
#[cfg(fuzzing)]
pub fn with_header(content: &[u8]) -> Vec<u8> {
    format::seal(content)
}
