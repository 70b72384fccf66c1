//! What a sandbox sends on port 80, and what servers get of it.
//!
//! The first byte says how large the pieces are that the rest arrives in.
//!
//! Servers get whole requests that a second reader, which knows the plain forms only, has no doubt about. Each is for the
//! name that the policy was asked about: that of its one Host, or none where that is an address. It is made as to a server,
//! not as to a proxy, and says nothing that concerns the sandbox's connection. All is the same however the bytes are cut, and
//! plain requests arrive as they were sent.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Flaw, Input, Request, block_on_at_rest, statuses};
use sandpiper_network::fuzzing::{Passed, requests};

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let size = usize::from(input.byte()) + 1;
    let bytes = input.0;
    let serve = |size: usize| {
        block_on_at_rest(requests(bytes.chunks(size), |bytes| Request::read(bytes) != Err(Flaw::Unfinished)))
            .expect("sockets")
    };

    let (answers, passed) = serve(bytes.len().max(1));
    let arrived: Vec<Request> = passed.iter().filter_map(check).collect();
    let (answers_in_pieces, passed_in_pieces) = serve(size);
    let in_pieces: Vec<Request> = passed_in_pieces.iter().filter_map(check).collect();
    assert_eq!(arrived, in_pieces, "cut otherwise, it means something else");
    assert_eq!(statuses(&answers), statuses(&answers_in_pieces), "cut otherwise, it is answered otherwise");

    let sent = ordinary(bytes);
    assert!(arrived.len() >= sent.len(), "a plain request was lost: {}", answers.escape_ascii());
    for (sent, arrived) in sent.iter().zip(&arrived) {
        assert_eq!(sent.message(), arrived.message());
    }
}

/// The requests that the input begins with, as far as they are sure to pass.
fn ordinary(mut bytes: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while let Ok((request, rest)) = Request::read(bytes) {
        let passes = matches!(request.values("host")[..], ["a.test" | "b.test:80" | "192.0.2.1"]);
        if !(passes && request.is_ordinary()) {
            break;
        }
        requests.push(request);
        bytes = rest;
    }
    requests
}

/// What a server got; none if the client broke off.
fn check(passed: &Passed) -> Option<Request> {
    let request = match Request::read(&passed.bytes) {
        Ok((request, rest)) => {
            assert!(rest.is_empty(), "more than a request: {request:?}");
            request
        }
        Err(Flaw::Unfinished) => return None,
        Err(Flaw::Doubtful) => panic!("read in two ways: {}", passed.bytes.escape_ascii()),
    };
    let name = passed.name.as_ref().map(|name| name.as_str());
    match request.values("host")[..] {
        [] => assert!(name.is_none() && request.version == "HTTP/1.0", "{request:?}"),
        [host] if is_address(host) => assert_eq!(name, None, "{host}"),
        [host] => {
            let (host, _port) = host.split_once(':').unwrap_or((host, ""));
            let host = host.to_ascii_lowercase();
            assert_eq!(name, Some(host.strip_suffix('.').unwrap_or(&host)));
        }
        _ => panic!("more than one host: {request:?}"),
    }
    assert!(request.target.starts_with('/') || request.target == "*", "{request:?}");
    assert!(request.method != "CONNECT", "{request:?}");
    for name in ["keep-alive", "proxy-connection"] {
        assert!(request.values(name).is_empty(), "{request:?}");
    }
    match request.values("upgrade")[..] {
        [] => {}
        [protocol] => assert!(protocol.eq_ignore_ascii_case("websocket"), "{request:?}"),
        _ => panic!("more than one upgrade: {request:?}"),
    }
    Some(request)
}

fn is_address(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok()
}
