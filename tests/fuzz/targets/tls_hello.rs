//! The beginning of a TLS connection out of a sandbox: whose name the policy is asked about.
//!
//! The first byte says how large the pieces are that the rest arrives in; bit 7 puts the rest into a record and a hello of
//! the right lengths, so that extensions are reached.
//!
//! What is passed on is what came; the name is the same however it is cut; and a second reading of the hello, which believes
//! all lengths and looks for nothing but the name, finds that name, or none but an address where there is said to be none:
//! the server may read it so too.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Input, Pieces, block_on};
use sandpiper_network::fuzzing::hello;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// TLS 1.2, a random of zeros, no session, one cipher suite, no compression.
const BEFORE_EXTENSIONS: [u8; 41] = {
    let mut bytes = [0; 41];
    (bytes[0], bytes[1]) = (3, 3);
    (bytes[36], bytes[37], bytes[38], bytes[39]) = (2, 0x13, 0x01, 1);
    bytes
};
/// What a client of TLS 1.2 says beside its server's name: groups, point formats and signature schemes.
const USUAL: [u8; 24] = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0, 0, 13, 0, 6, 0, 4, 4, 3, 8, 4];

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let shape = input.byte();
    let bytes = if shape & 0x80 == 0 { input.0.to_vec() } else { in_a_hello(input.0) };
    let read = |size: usize| block_on(hello(&mut Pieces::new(&bytes, size)));
    let whole = read(bytes.len().max(1));
    let in_pieces = read(usize::from(shape & 0x7f) + 1);
    let name = |hello: &Option<(Vec<u8>, _)>| hello.as_ref().map(|(_, name)| Option::clone(name));
    assert_eq!(name(&whole), name(&in_pieces), "cut otherwise, it names another");
    for (passed_on, _) in whole.iter().chain(&in_pieces) {
        assert!(bytes.starts_with(passed_on), "something else is passed on");
    }
    if let Some((_, name)) = whole {
        let second = second_reading(&bytes);
        match name {
            Some(name) => {
                let second = second.map(|host| host.trim_end_matches('.').to_ascii_lowercase());
                assert_eq!(second.as_deref(), Some(name.as_str()));
            }
            None => assert!(second.is_none_or(|host| host.parse::<IpAddr>().is_ok()), "a name was overlooked"),
        }
    }
}

fn in_a_hello(extensions: &[u8]) -> Vec<u8> {
    let extensions = [&USUAL, extensions].concat();
    let length = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    let body = [&BEFORE_EXTENSIONS[..], &length(extensions.len()), &extensions].concat();
    let handshake = [&[CLIENT_HELLO, 0][..], &length(body.len()), &body].concat();
    [&[HANDSHAKE, 3, 1][..], &length(handshake.len()), &handshake].concat()
}

/// The host name in a hello that may be spread over several records (RFC 8446, section 4.1.2; RFC 6066, section 3).
fn second_reading(mut bytes: &[u8]) -> Option<String> {
    let mut handshake = Vec::new();
    while let Some(([HANDSHAKE, _, _, high, low], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        handshake.extend_from_slice(&rest[..length]);
        bytes = &rest[length..];
    }
    // Type and length, version and random.
    let mut hello = Input(handshake.get(4 + 34..)?);
    let session = hello.byte();
    hello.take(session.into());
    let suites = u16::from_be_bytes(hello.number());
    hello.take(suites.into());
    let compressions = hello.byte();
    hello.take(compressions.into());
    let extensions = u16::from_be_bytes(hello.number());
    let mut extensions = Input(hello.take(extensions.into()));
    while !extensions.is_empty() {
        let (kind, length) = (u16::from_be_bytes(extensions.number()), u16::from_be_bytes(extensions.number()));
        let content = extensions.take(length.into());
        if kind == SERVER_NAME {
            // The list's length and the first entry's type.
            let mut name = Input(content.get(3..)?);
            let length = u16::from_be_bytes(name.number());
            return Some(String::from_utf8_lossy(name.take(length.into())).into_owned());
        }
    }
    None
}
