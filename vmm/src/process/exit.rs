//! The exit record's file.

use std::fs::File;
use std::io::{self, Write};

use sandpiper_protocol::vmm::ExitRecord;

/// Writes `record` so that it survives a crash of the host. A pipe or a terminal, which cannot be synchronised, is fine.
pub(crate) fn write(mut file: File, record: &ExitRecord) -> io::Result<()> {
    let mut json = serde_json::to_vec(record)?;
    json.push(b'\n');
    file.write_all(&json)?;
    match file.sync_data() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EROFS)) => Ok(()),
        result => result,
    }
}
