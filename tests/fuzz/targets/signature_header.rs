//! A signature header from a stranger: read exactly where a second, independent reading of the grammar reads it, with the
//! same time and digest.
//!
//! The input is read as it is, and once more as the time and as the digest of a header that is right otherwise.

#![no_main]

#[path = "../../../webhook/tests/webhook/reference.rs"]
mod reference;

use libfuzzer_sys::fuzz_target;
use sandpiper_webhook::Signature;

const DIGEST: &[u8] = b"3f7f18bbe20d61545089f6e1aed1d64c0b057e497922011716985c520442f6ff";

fuzz_target!(|input: &[u8]| {
    compare(input);
    compare(&[b"v=1, t=", input, b", alg=hmac-sha256, s=", DIGEST].concat());
    compare(&[b"v=1, t=1700000000, alg=hmac-sha256, s=", input].concat());
});

fn compare(header: &[u8]) {
    let read = Signature::parse(header).map(|signature| signature.to_string());
    let expected = reference::read(header).map(|(time, digest)| format!("v=1, t={time}, alg=hmac-sha256, s={digest}"));
    assert_eq!(read.ok(), expected);
}
