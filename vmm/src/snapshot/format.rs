//! The format of the files that a monitor writes for another monitor to read.
//!
//! ```text
//!   0   "SNDPSNAP"
//!   8   version, 4 bytes     all numbers little-endian
//!   12  kind, 4 bytes        a state, or a working set
//!   16  length of the payload, 8 bytes
//!   24  CRC-32 of all that is before and after it, 4 bytes; up to version 4 of the payload alone
//!   28  payload: an origin, then the content (postcard)
//! ```
//!
//! The checksum is against accidents. A file that somebody made up has the right one; everything in it is checked again
//! where it is used.
//!
//! A file is used only on the CPU model that it was made on: nothing else could promise that a register means the same.
//! What it needs of KVM is in the state, and compared where that is used ([`restore`](crate::machine::restore)): an update of
//! the host's kernel changes nothing if KVM can do what it could. A monitor also reads earlier versions, from
//! [`OLDEST_FORMAT_VERSION`] on, and refuses others before anything is touched; `golden` has a file of each.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

const MAGIC: [u8; 8] = *b"SNDPSNAP";
/// Raised by any change of what is in a payload; a test in `golden` fails without.
pub(super) const FORMAT_VERSION: u32 = 5;
/// The first that [`Content::read`] knows.
pub(super) const OLDEST_FORMAT_VERSION: u32 = 3;
const HEADER: usize = 28;
/// Longest payload: 64 vCPUs take less than 1 MiB.
const MAX_PAYLOAD: u64 = 16 << 20;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    State,
    WorkingSet,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::State => 1,
            Self::WorkingSet => 2,
        }
    }
}

/// What a file holds, besides its origin.
pub(crate) trait Content: Serialize + Sized {
    const KIND: Kind;

    /// Reads what was written as format `version`, one that is known. Returns also what is left of `bytes`.
    fn read(version: u32, bytes: &[u8]) -> postcard::Result<(Self, &[u8])>;
}

/// Where and by what a file was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of the monitor.
    monitor: String,
    /// `uname -r`
    kernel: String,
    /// Vendor and signature (family, model, stepping) of the CPU.
    cpu: String,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("Cannot read the snapshot")]
    Read(#[source] io::Error),
    #[error("Cannot write the snapshot")]
    Write(#[source] io::Error),
    #[error("The file for the snapshot is not empty")]
    NotEmpty,
    #[error("Not a snapshot of this kind")]
    NotASnapshot,
    #[error("The snapshot is cut off: {found} bytes of {expected}")]
    Truncated { found: u64, expected: u64 },
    #[error("The snapshot has format version {found}; this monitor reads {OLDEST_FORMAT_VERSION} to {FORMAT_VERSION}")]
    OtherVersion { found: u32 },
    #[error("The snapshot is damaged: its checksum is wrong")]
    Damaged,
    #[error("The snapshot's content is not valid: {0}")]
    Invalid(postcard::Error),
    #[error(
        "The snapshot does not list what it needs of KVM; it was taken under Linux {theirs}, this host runs {ours}"
    )]
    OtherKernel { theirs: String, ours: String },
    #[error("The snapshot was taken on a CPU {theirs}, this one is {ours}")]
    OtherCpu { theirs: String, ours: String },
}

impl FormatError {
    /// Whether the file is at fault, and not this host's reading or writing of it.
    pub(crate) fn is_file(&self) -> bool {
        !matches!(self, Self::Read(_) | Self::Write(_) | Self::NotEmpty)
    }
}

impl Origin {
    /// This monitor on this host.
    pub fn here() -> Self {
        Self { monitor: env!("CARGO_PKG_VERSION").to_owned(), kernel: kernel_release(), cpu: cpu_model() }
    }

    /// Whether what was made at `self`, as format `version`, can be used here.
    fn check(self, version: u32) -> Result<(), FormatError> {
        let ours = Self::here();
        if version == 3 && self.kernel != ours.kernel {
            return Err(FormatError::OtherKernel { theirs: self.kernel, ours: ours.kernel });
        }
        if self.cpu != ours.cpu {
            return Err(FormatError::OtherCpu { theirs: self.cpu, ours: ours.cpu });
        }
        Ok(())
    }
}

fn kernel_release() -> String {
    // SAFETY: all zeros is a valid `utsname`, whose fields are arrays of characters.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `uname` fills the one structure that it is given.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return "unknown".to_owned();
    }
    name.release.iter().take_while(|byte| **byte != 0).map(|byte| char::from(byte.cast_unsigned())).collect()
}

fn cpu_model() -> String {
    let vendor = std::arch::x86_64::__cpuid(0);
    let signature = std::arch::x86_64::__cpuid(1).eax;
    let text: Vec<u8> = [vendor.ebx, vendor.edx, vendor.ecx].iter().flat_map(|part| part.to_le_bytes()).collect();
    format!("{} {signature:#x}", String::from_utf8_lossy(&text).trim_end_matches('\0'))
}

/// Writes `content` to `file`, which is empty. Returns the number of bytes.
pub(crate) fn write<T: Content>(file: &File, content: &T) -> Result<u64, FormatError> {
    if file.metadata().map_err(FormatError::Write)?.len() != 0 {
        return Err(FormatError::NotEmpty);
    }
    let bytes = encode(&Origin::here(), content)?;
    file.write_all_at(&bytes, 0).map_err(FormatError::Write)?;
    Ok(bytes.len() as u64)
}

/// Reads what [`write`] wrote.
pub(crate) fn read<T: Content>(file: &File) -> Result<T, FormatError> {
    let length = file.metadata().map_err(FormatError::Read)?.len();
    let mut bytes = vec![0; usize::try_from(length.min(MAX_PAYLOAD + HEADER as u64)).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0).map_err(FormatError::Read)?;
    decode(&bytes)
}

pub(super) fn encode<T: Content>(origin: &Origin, content: &T) -> Result<Vec<u8>, FormatError> {
    let mut bytes = vec![0; HEADER];
    bytes = postcard::to_extend(origin, bytes).map_err(FormatError::Invalid)?;
    bytes = postcard::to_extend(content, bytes).map_err(FormatError::Invalid)?;
    if (bytes.len() - HEADER) as u64 > MAX_PAYLOAD {
        return Err(FormatError::Write(io::Error::new(io::ErrorKind::FileTooLarge, "a state of more than 16 MiB")));
    }
    fill_header(&mut bytes, T::KIND);
    Ok(bytes)
}

/// Makes the first bytes of a file what the rest of it demands.
fn fill_header(bytes: &mut [u8], kind: Kind) {
    let length = (bytes.len() - HEADER) as u64;
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&kind.number().to_le_bytes());
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(FORMAT_VERSION, &bytes[..24], &bytes[HEADER..]);
    bytes[24..HEADER].copy_from_slice(&checksum.to_le_bytes());
}

/// Of a file of this version, whose bytes are `header` before the checksum and `payload` after it. It covers the header, so
/// that a version which one flipped bit makes another that is known is noticed.
fn checksum(version: u32, header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    if version >= 5 {
        hasher.update(header);
    }
    hasher.update(payload);
    hasher.finalize()
}

/// A state from here whose content is these bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn seal(content: &[u8]) -> Vec<u8> {
    let mut bytes = postcard::to_extend(&Origin::here(), vec![0; HEADER]).unwrap_or_default();
    bytes.extend_from_slice(content);
    fill_header(&mut bytes, Kind::State);
    bytes
}

/// The content of a file that holds `bytes`.
pub(crate) fn decode<T: Content>(bytes: &[u8]) -> Result<T, FormatError> {
    let (version, origin, content) = parse(bytes)?;
    origin.check(version)?;
    Ok(content)
}

/// Format version, origin and content of a file that holds `bytes`, wherever it was made.
pub(super) fn parse<T: Content>(bytes: &[u8]) -> Result<(u32, Origin, T), FormatError> {
    let Some((header, payload)) = bytes.split_at_checked(HEADER) else {
        return Err(FormatError::Truncated { found: bytes.len() as u64, expected: HEADER as u64 });
    };
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if header[..8] != MAGIC || number(12) != T::KIND.number() {
        return Err(FormatError::NotASnapshot);
    }
    let version = number(8);
    if !(OLDEST_FORMAT_VERSION..=FORMAT_VERSION).contains(&version) {
        return Err(FormatError::OtherVersion { found: version });
    }
    let expected = u64::from(number(16)) | u64::from(number(20)) << 32;
    if expected != payload.len() as u64 {
        return Err(FormatError::Truncated { found: payload.len() as u64, expected });
    }
    if checksum(version, &header[..24], payload) != number(24) {
        return Err(FormatError::Damaged);
    }
    let (origin, content) = postcard::take_from_bytes::<Origin>(payload).map_err(FormatError::Invalid)?;
    match T::read(version, content).map_err(FormatError::Invalid)? {
        (content, []) => Ok((version, origin, content)),
        _ => Err(FormatError::Invalid(postcard::Error::DeserializeBadEncoding)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, PartialEq, Serialize)]
    struct Example(u64, u64);

    impl Content for Example {
        const KIND: Kind = Kind::WorkingSet;

        fn read(_form: u32, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
            let ((first, second), rest) = postcard::take_from_bytes(bytes)?;
            Ok((Self(first, second), rest))
        }
    }

    fn example() -> Vec<u8> {
        encode(&Origin::here(), &Example(1, 2)).unwrap()
    }

    fn error(bytes: &[u8]) -> FormatError {
        decode::<Example>(bytes).unwrap_err()
    }

    #[test]
    fn what_was_written_is_read_again() {
        let file = tempfile::tempfile().unwrap();
        write(&file, &Example(5, 6)).unwrap();
        assert_eq!(read::<Example>(&file).unwrap(), Example(5, 6));
        assert!(matches!(read::<crate::snapshot::state::State>(&file), Err(FormatError::NotASnapshot)));
        assert!(matches!(write(&file, &Example(5, 6)), Err(FormatError::NotEmpty)));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let bytes = example();
        for length in 0..bytes.len() {
            assert!(matches!(error(&bytes[..length]), FormatError::Truncated { .. }), "cut at {length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            error(&bytes);
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(error(&longer), FormatError::Truncated { .. }));
    }

    #[test]
    fn another_cpu_or_form_is_refused_and_another_kernel_only_where_the_form_says_nothing_of_kvm() {
        let other = || "0.0.1".to_owned();
        let from = |origin: Origin| encode(&origin, &Example(1, 2)).unwrap();
        let cpu = from(Origin { cpu: other(), ..Origin::here() });
        assert!(error(&cpu).to_string().starts_with("The snapshot was taken on a CPU 0.0.1, this one is"));

        let mut kernel = from(Origin { kernel: other(), monitor: other(), ..Origin::here() });
        assert_eq!(decode::<Example>(&kernel).unwrap(), Example(1, 2));
        kernel[8] = 3;
        let checksum = checksum(3, &kernel[..24], &kernel[HEADER..]);
        kernel[24..HEADER].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(error(&kernel), FormatError::OtherKernel { .. }));

        let mut bytes = example();
        bytes[8] = 9;
        assert_eq!(error(&bytes).to_string(), "The snapshot has format version 9; this monitor reads 3 to 5");
    }

    proptest! {
        #[test]
        fn payloads_with_a_right_checksum_and_any_content_do_not_panic(content: Vec<u8>) {
            let _ = decode::<crate::snapshot::state::State>(&seal(&content));
        }
    }
}
