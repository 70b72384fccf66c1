//! Whether there is a shell: without one nothing could be run in a sandbox.
//!
//! It is looked at, not run: what it would do is the tenant's choice.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::failure::Failure;

const SHELL: &str = "/bin/sh";

/// What helps against any of it.
const HELP: &str = "Add one, for example a static busybox as /bin/sh";

/// Of the ELF specification.
const MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const MACHINE_X86_64: u16 = 62;
const SEGMENT_INTERPRETER: u32 = 3;

/// More segments than any program has.
const MAX_SEGMENTS: u16 = 256;

/// What a program file says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    is_x86_64: bool,
    /// What loads it; nothing for a static one.
    interpreter: Option<String>,
}

/// Refuses a tree, which is the root folder here, without a shell that can run.
///
/// # Errors
///
/// Fails if there is none.
pub(super) fn check() -> Result<(), Failure> {
    // A pipe would have nothing for ever.
    if fs::metadata(SHELL).is_ok_and(|meta| !meta.is_file()) {
        return refuse(&format!("{SHELL} of the image is no file"));
    }
    let shell = match File::open(SHELL) {
        Ok(file) => read(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return refuse(&format!("The image has no {SHELL}")),
        Err(error) => Err(error),
    };
    let Program { is_x86_64, interpreter } = match shell {
        Ok(Some(program)) => program,
        Ok(None) => return refuse(&format!("{SHELL} of the image is no program")),
        Err(error) => return refuse(&format!("{SHELL} of the image cannot be read ({error})")),
    };
    if !is_x86_64 {
        return refuse(&format!("{SHELL} of the image is for another processor than x86-64"));
    }
    match interpreter {
        Some(loader) if !Path::new(&loader).is_file() => {
            refuse(&format!("{SHELL} of the image cannot run, as {loader}, which loads it, is not there"))
        }
        _ => Ok(()),
    }
}

fn refuse(what: &str) -> Result<(), Failure> {
    Err(Failure::NoShell(format!("{what}, and a sandbox needs a shell. {HELP}")))
}

/// `None` if it is no ELF program.
fn read(mut file: impl Read + Seek) -> io::Result<Option<Program>> {
    let mut header = [0; 64];
    match file.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    if header[..4] != MAGIC {
        return Ok(None);
    }
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN || u16_at(&header, 18) != MACHINE_X86_64 {
        return Ok(Some(Program { is_x86_64: false, interpreter: None }));
    }
    let (table, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    for index in 0..count.min(MAX_SEGMENTS) {
        let mut segment = [0; 56];
        file.seek(SeekFrom::Start(table.saturating_add(u64::from(index) * u64::from(size))))?;
        file.read_exact(&mut segment)?;
        if u32_at(&segment, 0) == SEGMENT_INTERPRETER {
            file.seek(SeekFrom::Start(u64_at(&segment, 8)))?;
            let mut name = Vec::new();
            file.take(u64_at(&segment, 32).min(4096)).read_to_end(&mut name)?;
            let name = String::from_utf8_lossy(&name);
            return Ok(Some(Program { is_x86_64: true, interpreter: Some(name.trim_end_matches('\0').to_owned()) }));
        }
    }
    Ok(Some(Program { is_x86_64: true, interpreter: None }))
}

/// Numbers of a header that is longer than where they are.
fn u16_at<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn u32_at<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from(u16_at(header, at)) | u32::from(u16_at(header, at + 2)) << 16
}

fn u64_at<const N: usize>(header: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(header, at)) | u64::from(u32_at(header, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn this_machines_shell_and_its_loader_are_found() {
        let program = read(File::open(SHELL).unwrap()).unwrap().unwrap();
        assert!(program.is_x86_64);
        assert!(program.interpreter.is_none_or(|loader| Path::new(&loader).is_file()));
        check().unwrap();
    }

    #[test]
    fn what_is_no_program_or_another_machines_is_told() {
        assert_eq!(read(Cursor::new(b"#!/bin/bash\n")).unwrap(), None);
        assert_eq!(read(Cursor::new([b'x'; 100])).unwrap(), None);
        let mut other = [0; 64];
        other[..6].copy_from_slice(b"\x7fELF\x02\x01");
        other[18] = 183;
        assert_eq!(read(Cursor::new(other)).unwrap(), Some(Program { is_x86_64: false, interpreter: None }));
    }

    #[test]
    fn a_header_that_points_nowhere_is_an_error() {
        let mut broken = [0; 64];
        broken[..6].copy_from_slice(b"\x7fELF\x02\x01");
        broken[18] = 62;
        broken[32..40].fill(0xff);
        broken[56] = 1;
        assert!(read(Cursor::new(broken)).is_err());
    }
}
