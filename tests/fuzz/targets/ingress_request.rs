//! What a client sends to the ingress, and what guests get of it.
//!
//! The first byte says how large the pieces are that the rest arrives in; `spt1_ann` and `spt1_bob` in it stand for the access
//! tokens of these sandboxes.
//!
//! Guests get whole requests that a second reader, which knows the plain forms only, has no doubt about. Each has come to the
//! sandbox and the port that its one Host names; where that names none, to those of the E2B SDKs' fields, or else to the data
//! plane that its token opens. It came with the token where one is needed but never with one in it; it says whom it is from
//! as the proxy knows it, and nothing that concerns the client's connection. All is the same however the bytes are cut, and
//! plain requests arrive as they were sent.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Flaw, Input, Request, block_on_at_rest, statuses};
use sandpiper_ingress::fuzzing::{CLIENT, Ingress, Passed};

static INGRESS: LazyLock<Ingress> = LazyLock::new(|| block_on_at_rest(async { Ingress::new().expect("sockets") }));

fuzz_target!(|input: &[u8]| run(Input(input)));

fn run(mut input: Input<'_>) {
    let size = usize::from(input.byte()) + 1;
    let tokens = ["ann", "bob"].map(|sandbox| (format!("spt1_{sandbox}"), INGRESS.token(sandbox)));
    let bytes = tokens.iter().fold(input.0.to_vec(), |bytes, (word, token)| replace(&bytes, word, token));
    let serve = |size: usize| {
        block_on_at_rest(INGRESS.serve(bytes.chunks(size), |bytes| Request::read(bytes) != Err(Flaw::Unfinished)))
            .expect("sockets")
    };

    let (answers, passed) = serve(bytes.len().max(1));
    let arrived: Vec<Request> = passed.iter().filter_map(|passed| check(passed, &bytes, &tokens)).collect();
    let (answers_in_pieces, passed_in_pieces) = serve(size);
    let in_pieces: Vec<Request> = passed_in_pieces.iter().filter_map(|passed| check(passed, &bytes, &tokens)).collect();
    assert_eq!(arrived, in_pieces, "cut otherwise, it means something else");
    assert_eq!(statuses(&answers), statuses(&answers_in_pieces), "cut otherwise, it is answered otherwise");

    let sent = ordinary(&bytes);
    assert!(arrived.len() >= sent.len(), "a plain request was lost: {}", String::from_utf8_lossy(&answers));
    for (sent, arrived) in sent.iter().zip(&arrived) {
        assert_eq!(sent.message(), arrived.message());
    }
}

/// The requests that the input begins with, as far as they are sure to pass.
fn ordinary(mut bytes: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while let Ok((request, rest)) = Request::read(bytes) {
        let passes =
            matches!(request.values("host")[..], ["p8000-ann.sandbox.localhost" | "p8000-bob.sandbox.localhost"]);
        if !(passes && request.is_ordinary()) {
            break;
        }
        requests.push(request);
        bytes = rest;
    }
    requests
}

/// What a guest got; none if the client broke off.
fn check(passed: &Passed, sent: &[u8], tokens: &[(String, String)]) -> Option<Request> {
    let request = match Request::read(&passed.bytes) {
        Ok((request, rest)) => {
            assert!(rest.is_empty(), "more than a request: {request:?}");
            request
        }
        Err(Flaw::Unfinished) => return None,
        Err(Flaw::Doubtful) => panic!("read in two ways: {}", passed.bytes.escape_ascii()),
    };
    let [host] = request.values("host")[..] else { panic!("not one host: {request:?}") };
    let named = leads_to(host).or_else(|| named_by_fields(&request));
    match &named {
        Some(named) => assert_eq!(*named, (passed.sandbox.to_owned(), passed.port), "{request:?}"),
        None => assert_eq!(passed.port, None, "a token alone opened a port: {request:?}"),
    }

    let asks_for_health = request.method == "GET" && request.target.split('?').next() == Some("/health");
    let is_public = named.is_some() && (passed.port == Some(8000) || (passed.port.is_none() && asks_for_health));
    let (_, token) = tokens.iter().find(|(word, _)| word.ends_with(passed.sandbox)).expect("a sandbox");
    let has_token = sent.windows(token.len()).any(|window| window == token.as_bytes());
    assert!(is_public || has_token, "passed without a token: {request:?}");
    check_credentials(&request);
    check_fields(&request, host);
    Some(request)
}

/// Sandbox and port of a host name.
fn leads_to(host: &str) -> Option<(String, Option<u16>)> {
    let name = host.split(':').next()?.to_ascii_lowercase();
    let label = name.trim_end_matches('.').strip_suffix(".sandbox.localhost")?.to_owned();
    match label.split_once('-') {
        None if label == "sandbox" => None,
        None => Some((label, None)),
        Some((port, sandbox)) => Some((sandbox.to_owned(), guest_port(port.trim_start_matches('p'))?)),
    }
}

/// Sandbox and port that the two fields of the E2B SDKs name.
fn named_by_fields(request: &Request) -> Option<(String, Option<u16>)> {
    let ([id], [port]) = (&request.values("e2b-sandbox-id")[..], &request.values("e2b-sandbox-port")[..]) else {
        return None;
    };
    Some(((*id).to_owned(), guest_port(port)?))
}

/// The port in a guest, `None` for its data plane.
fn guest_port(text: &str) -> Option<Option<u16>> {
    let port: u16 = text.parse().ok()?;
    Some((port != 49983).then_some(port))
}

fn check_credentials(request: &Request) {
    let is_token = |value: &str| value.starts_with("spt1_");
    let (_, query) = request.target.split_once('?').unwrap_or_default();
    assert!(!query.split('&').filter_map(|pair| pair.strip_prefix("access_token=")).any(is_token), "{request:?}");
    assert!(!request.values("x-access-token").into_iter().any(is_token), "{request:?}");
    let bearers = request.values("authorization").into_iter().filter_map(|value| value.split_once(' '));
    for (scheme, token) in bearers {
        assert!(!(scheme.eq_ignore_ascii_case("bearer") && is_token(token.trim())), "{request:?}");
    }
}

fn check_fields(request: &Request, host: &str) {
    assert_eq!(request.values("x-forwarded-for"), [CLIENT.to_string()]);
    assert_eq!(request.values("x-forwarded-host"), [host]);
    assert_eq!(request.values("x-forwarded-proto"), ["http"]);
    assert_eq!(request.values("forwarded"), [format!("for={CLIENT};host=\"{host}\";proto=http")]);
    let claims = request.fields.iter().filter(|(name, _)| name.starts_with("x-forwarded-") || name == "x-real-ip");
    assert_eq!(claims.count(), 4, "{request:?}");
    for name in ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "expect"] {
        assert!(request.values(name).is_empty(), "{request:?}");
    }
    assert!(matches!(request.values("te")[..], [] | ["trailers"]), "{request:?}");
    match request.values("connection")[..] {
        ["Upgrade"] => assert_eq!(request.values("upgrade").len(), 1, "{request:?}"),
        [] | ["TE"] => assert!(request.values("upgrade").is_empty(), "{request:?}"),
        _ => panic!("{request:?}"),
    }
}

fn replace(bytes: &[u8], word: &str, by: &str) -> Vec<u8> {
    let (mut replaced, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.windows(word.len()).position(|window| window == word.as_bytes()) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(by.as_bytes());
        rest = &rest[at + word.len()..];
    }
    replaced.extend_from_slice(rest);
    replaced
}
