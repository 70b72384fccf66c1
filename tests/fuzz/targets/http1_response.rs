//! What a guest's server answers to the ingress proxy.
//!
//! The first byte chooses the request's method and the size of the pieces that the answer, which is the rest, arrives in.
//!
//! An answer means the same however it is cut; no piece of a body that is passed on is empty, for an empty chunk would end
//! the client's; and where a second reading, which knows the plain forms only, is sure, the body and what is left behind it
//! are exactly those.
#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Input, block_on};
use sandpiper_ingress::fuzzing::{Answer, exchange};

/// More are refused.
const MAX_FIELDS: usize = 100;

fuzz_target!(|input: &[u8]| run(Input(input)));

/// Body and rest, as far as a server that keeps to plain forms is understood.
enum Second {
    Answer { body: Vec<u8>, rest: Vec<u8> },
    Broken,
    NotSure,
}

fn run(mut input: Input<'_>) {
    let shape = input.byte();
    let method = if shape & 0x80 == 0 { Method::GET } else { Method::HEAD };
    let answer = input.0;
    let cut = |size: usize| {
        let answer = block_on(exchange(method.clone(), answer.chunks(size)))?;
        assert!(answer.body.iter().all(|piece| !piece.is_empty()), "an empty piece");
        let body = answer.body.concat();
        Some((Answer { body: Vec::new(), ..answer }, body))
    };

    let whole = cut(answer.len().max(1));
    assert_eq!(whole, cut(usize::from(shape & 0x7f) + 1), "cut otherwise, it means something else");
    match (second_reading(&method, answer), whole) {
        (Second::Answer { body, rest }, Some((answer, read))) => assert_eq!((read, answer.rest), (body, rest)),
        (Second::Answer { .. }, None) => panic!("a plain answer was refused"),
        (Second::Broken, answer) => assert_eq!(answer, None),
        (Second::NotSure, _) => {}
    }
}

fn second_reading(method: &Method, mut input: &[u8]) -> Second {
    loop {
        let Some((head, rest)) = split(input, b"\r\n\r\n") else { return Second::NotSure };
        let Ok(head) = str::from_utf8(head) else { return Second::NotSure };
        let lines: Vec<&str> = head.split("\r\n").collect();
        let Some(fields) = lines[1..].iter().map(|line| plain_field(line)).collect::<Option<Vec<_>>>() else {
            return Second::NotSure;
        };
        let status = lines[0].strip_prefix("HTTP/1.1 ").and_then(|line| line.strip_suffix(" OK"));
        let status = status.filter(|status| status.len() == 3 && fields.len() <= MAX_FIELDS);
        let status = status.and_then(|status| status.parse::<u16>().ok());
        let Some(status @ 102..1000) = status else { return Second::NotSure };
        input = rest;
        return match status {
            102..200 => continue,
            204 | 304 => Second::Answer { body: Vec::new(), rest: rest.to_vec() },
            _ if *method == Method::HEAD => Second::Answer { body: Vec::new(), rest: rest.to_vec() },
            _ => body(&fields, rest),
        };
    }
}

/// A field of characters that nobody can misread.
fn plain_field(line: &str) -> Option<(String, &str)> {
    let (name, value) = line.split_once(": ")?;
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain(name) && plain(value)).then(|| (name.to_ascii_lowercase(), value))
}

fn body(fields: &[(String, &str)], rest: &[u8]) -> Second {
    let all =
        |name: &str| fields.iter().filter(|(field, _)| field == name).map(|(_, value)| *value).collect::<Vec<_>>();
    match (all("transfer-encoding").as_slice(), all("content-length").as_slice()) {
        ([], []) => Second::Answer { body: rest.to_vec(), rest: Vec::new() },
        ([], [length]) => match length.parse().ok().and_then(|length| rest.split_at_checked(length)) {
            Some((body, rest)) => Second::Answer { body: body.to_vec(), rest: rest.to_vec() },
            None => Second::Broken,
        },
        (["chunked"], []) => chunks(rest),
        _ => Second::NotSure,
    }
}

fn chunks(mut input: &[u8]) -> Second {
    let mut body = Vec::new();
    loop {
        let Some((size, rest)) = split(input, b"\r\n") else { return Second::NotSure };
        let digits = str::from_utf8(size).ok().filter(|size| size.len() < 8);
        let digits = digits.filter(|size| size.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(size) = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()) else {
            return Second::NotSure;
        };
        if size == 0 {
            return match rest.strip_prefix(b"\r\n") {
                Some(rest) => Second::Answer { body, rest: rest.to_vec() },
                None => Second::NotSure,
            };
        }
        let Some((chunk, rest)) = rest.split_at_checked(size) else { return Second::Broken };
        let Some(rest) = rest.strip_prefix(b"\r\n") else { return Second::Broken };
        body.extend_from_slice(chunk);
        input = rest;
    }
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..found], &bytes[found + at.len()..]))
}
