//! A snapshot's state from a stranger: whatever it says, it is read or refused, and nothing else happens.
//!
//! The header with its checksum is put before the input, so that the fuzzer gets past it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandpiper_vmm::snapshot;

fuzz_target!(|payload: &[u8]| {
    let _ = snapshot::check_state(payload);
    let _ = snapshot::check_state(&snapshot::with_header(payload));
});
