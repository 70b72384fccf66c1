//! A snapshot's state from a stranger.
//!
//! The input is read as it is, and once more behind a header with the right checksum. What is accepted means the same once
//! it is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandpiper_vmm::snapshot::{rewrite, with_header};

fuzz_target!(|payload: &[u8]| {
    for bytes in [payload, &with_header(payload)] {
        if let Ok(written) = rewrite(bytes) {
            assert_eq!(rewrite(&written).ok().as_ref(), Some(&written));
        }
    }
});
