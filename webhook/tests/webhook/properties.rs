//! What holds for every key, body, time and header.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use sandpiper_webhook::{DEFAULT_WINDOW, Reason, Signature, SigningKey, sign, verify};

use crate::reference;

fn signing_key(bytes: &[u8]) -> SigningKey {
    SigningKey::from_api_key(&format!("sk_prod_{}", BASE64.encode(bytes))).unwrap()
}

fn key_bytes() -> impl Strategy<Value = Vec<u8>> {
    // Past the block of SHA-256, where HMAC hashes its key first.
    vec(any::<u8>(), 1..100)
}

fn with_bit_flipped(bytes: &[u8], at: Index) -> Vec<u8> {
    let bit = at.index(bytes.len() * 8);
    let mut changed = bytes.to_vec();
    changed[bit / 8] ^= 1 << (bit % 8);
    changed
}

/// A part of a header: right, nearly right, or anything.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just("v=1".to_owned()),
        4 => Just("alg=hmac-sha256".to_owned()),
        4 => (0..=i64::MAX).prop_map(|time| format!("t={time}")),
        4 => "s=[0-9a-f]{64}",
        1 => "(v|t|alg|s|x|)[ \t]?=[ \t]?[0-9a-fA-F]{0,2}",
        1 => "t=[-+0]?[0-9]{1,20}",
        1 => "s=[0-9a-fA-G]{62,66}",
        1 => "[a-z]{1,3}=[ -~]{0,5}",
        1 => any::<String>(),
    ]
}

/// Headers of which many follow the grammar and many nearly do.
fn header() -> impl Strategy<Value = String> {
    let right = ("s=[0-9a-f]{64}", 0..=i64::MAX)
        .prop_map(|(digest, time)| vec!["v=1".to_owned(), format!("t={time}"), "alg=hmac-sha256".to_owned(), digest])
        .prop_shuffle();
    let separator = prop_oneof![3 => Just(", ".to_owned()), 1 => "[ \t]{0,2},[ \t]{0,2}", 1 => "[,; ]{0,2}"];
    prop_oneof![
        (right, vec(part(), 0..2)).prop_map(|(mut parts, more)| {
            parts.extend(more);
            parts
        }),
        vec(part(), 0..7),
    ]
    .prop_flat_map(move |parts| {
        let count = parts.len();
        (Just(parts), vec(separator.clone(), count))
    })
    .prop_map(|(parts, separators)| {
        let mut header = String::new();
        for (at, (part, separator)) in parts.iter().zip(separators).enumerate() {
            if at > 0 {
                header.push_str(&separator);
            }
            header.push_str(part);
        }
        header
    })
}

proptest! {
    #[test]
    fn what_is_signed_verifies(
        key in key_bytes(),
        time in 0..=i64::MAX,
        body in vec(any::<u8>(), 0..300),
        off in -600..=600i64,
    ) {
        let key = signing_key(&key);
        let header = sign(&key, time, &body);
        prop_assert_eq!(verify(&key, [&header], &body, time.saturating_add(off), DEFAULT_WINDOW), Ok(()));
    }

    #[test]
    fn what_is_signed_has_the_canonical_form(key in key_bytes(), time in 0..=i64::MAX, body in vec(any::<u8>(), 0..300)) {
        let header = sign(&signing_key(&key), time, &body);
        let digest = header.strip_prefix(&format!("v=1, t={time}, alg=hmac-sha256, s=")).unwrap();
        prop_assert_eq!(reference::read(header.as_bytes()), Some((time, digest)));
        prop_assert_eq!(Signature::parse(header.as_bytes()).unwrap().to_string(), header);
    }

    #[test]
    fn one_bit_of_the_body_key_or_digest_changed_is_a_mismatch(
        key in key_bytes(),
        time in 0..=i64::MAX,
        body in vec(any::<u8>(), 1..300),
        at in any::<Index>(),
    ) {
        let (signer, mismatch) = (signing_key(&key), Err(Reason::Mismatch));
        let header = sign(&signer, time, &body);

        prop_assert_eq!(&verify(&signer, [&header], &with_bit_flipped(&body, at), time, 0), &mismatch);

        let other_key = signing_key(&with_bit_flipped(&key, at));
        prop_assert_eq!(&verify(&other_key, [&header], &body, time, 0), &mismatch);

        let (start, digest) = header.rsplit_once('=').unwrap();
        let digest: Vec<u8> = digest.as_bytes().chunks(2).map(|pair| {
            u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()
        }).collect();
        let digest: String = with_bit_flipped(&digest, at).iter().map(|byte| format!("{byte:02x}")).collect();
        prop_assert_eq!(&verify(&signer, [format!("{start}={digest}")], &body, time, 0), &mismatch);
    }

    #[test]
    fn one_bit_of_the_time_changed_is_a_mismatch(
        key in key_bytes(),
        time in 0..=i64::MAX,
        body in vec(any::<u8>(), 0..300),
        bit in 0..63u32,
    ) {
        let key = signing_key(&key);
        let other_time = time ^ (1 << bit);
        let header = sign(&key, time, &body).replacen(&format!("t={time},"), &format!("t={other_time},"), 1);
        prop_assert_eq!(verify(&key, [&header], &body, other_time, 0), Err(Reason::Mismatch));
    }

    #[test]
    fn a_header_is_read_as_the_grammar_says(header in header()) {
        let read = Signature::parse(header.as_bytes()).ok().map(|signature| signature.to_string());
        let expected = reference::read(header.as_bytes())
            .map(|(time, digest)| format!("v=1, t={time}, alg=hmac-sha256, s={digest}"));
        prop_assert_eq!(read, expected, "{:?}", header);
    }

    #[test]
    fn bytes_of_any_kind_are_read_without_a_panic(header in vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Signature::parse(&header).is_ok(), reference::read(&header).is_some());
    }
}
