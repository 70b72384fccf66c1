//! A host without space: a write fails, the disk lives on.

use std::ffi::CString;
use std::io;

use sandpiper_skip::skipped;

use super::*;

/// A folder on a tmpfs of `kib` KiB, or `None`, said aloud, where mounting is not permitted.
pub(crate) fn small_file_system(kib: u64) -> Option<(tempfile::TempDir, Mounted)> {
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().to_str().unwrap()).unwrap();
    let options = CString::new(format!("size={kib}k")).unwrap();
    // SAFETY: all pointers are to C strings that live during the call.
    let result =
        unsafe { libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) };
    if result != 0 {
        let error = io::Error::last_os_error();
        skipped("a disk on a full host", format!("mounting a small tmpfs needs root: {error}"));
        return None;
    }
    Some((folder, Mounted(path)))
}

/// Unmounts when dropped.
pub(crate) struct Mounted(CString);

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a C string that lives during the call.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_full_host_fails_the_write_and_keeps_what_was_there() {
    let Some((folder, _mounted)) = small_file_system(1024) else { return };
    let mut stack = Stack::new(folder.path(), 1024);
    stack.add_with(0, &[1; 256 * 1024]);
    stack.add();
    let mut disk = stack.open();
    let mut model = read_all(&disk);

    // 4 MiB do not fit into what is left of 1 MiB; 64 KiB at a time, not on the grid of blocks.
    let failed_at = (0..64u64)
        .map(|number| number * 65536 + 100)
        .find(|&offset| match write(&mut disk, offset, &[2; 65000]) {
            Ok(()) => {
                model[usize::try_from(offset).unwrap()..][..65000].fill(2);
                false
            }
            Err(error) => {
                assert!(error.is_no_room(), "{error:?}");
                true
            }
        })
        .expect("the file system was never full");

    let failed = usize::try_from(failed_at).unwrap();
    let (now, again) = (read_all(&disk), read_all(&stack.open()));
    assert!(now == again, "what the failed write left hides the layer below");
    assert!(now[..failed] == model[..failed] && now[failed + 65000..] == model[failed + 65000..]);
    assert!(now[failed..failed + 65000].iter().zip(&model[failed..]).all(|(now, old)| now == old || *now == 2));

    // Space that the guest gives back can be used again.
    disk.discard(256 * 1024, 256 * 1024).unwrap();
    write(&mut disk, failed_at, &[3; 65000]).unwrap();
    assert_eq!(read(&disk, failed_at, 65000), vec![3; 65000]);
}
