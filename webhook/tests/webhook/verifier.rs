//! What a receiver accepts and refuses, case by case, with vectors that other implementations can be held against.

use sandpiper_webhook::{HeaderError, Reason, SecretError, Signature, SigningKey, sign, verify};

const SECRET: &str = "sk_prod_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const TIME: i64 = 1_700_000_000;
const BODY: &[u8] = br#"{"id":"pay_123","status":"COMPLETED","actualAmount":"1500.00"}"#;
const DIGEST: &str = "3f7f18bbe20d61545089f6e1aed1d64c0b057e497922011716985c520442f6ff";
const WINDOW: u64 = 600;

fn key() -> SigningKey {
    SigningKey::from_api_key(SECRET).unwrap()
}

/// What is said of a header that comes with [`BODY`] at [`TIME`].
fn verdict(header: &str) -> Result<(), Reason> {
    verify(&key(), [header], BODY, TIME, WINDOW)
}

fn malformed(error: HeaderError) -> Result<(), Reason> {
    Err(Reason::Malformed(error))
}

/// A header with this time and the digest of [`BODY`] at [`TIME`].
fn with_time(time: &str) -> String {
    format!("v=1, t={time}, alg=hmac-sha256, s={DIGEST}")
}

fn with_digest(digest: &str) -> String {
    format!("v=1, t=1700000000, alg=hmac-sha256, s={digest}")
}

fn good() -> String {
    with_digest(DIGEST)
}

#[test]
fn the_vectors_are_signed_and_verified() {
    let vectors: [(&str, i64, &[u8], &str); 3] = [
        (SECRET, TIME, BODY, DIGEST),
        (
            "sk_test_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            0,
            b"",
            "0e80838223869e9517439e639ad55157d90d439a465b4e569e67014750fa80da",
        ),
        ("sk_test_c2VjcmV0", 4_102_444_800, b"{}", "b138dccf0895cf61d7bdc7026ff36c255f34bcd680a6491dd4478f5e6ac6bf47"),
    ];
    for (secret, time, body, digest) in vectors {
        let key = SigningKey::from_api_key(secret).unwrap();

        let header = sign(&key, time, body);

        assert_eq!(header, format!("v=1, t={time}, alg=hmac-sha256, s={digest}"));
        assert_eq!(verify(&key, [&header], body, time, WINDOW), Ok(()));
    }
}

#[test]
fn digests_made_by_the_usual_mistakes_do_not_verify() {
    let mistakes = [
        ("the base64 text as key", "8b87d801aeb748719d80e778b27f18be99310e226193ff82dd6a77c69d23f5a6"),
        ("the body serialised anew", "6ca386a952f432d2bb24060df74dd5117b383dd4d8f640fc754126be479bd3bb"),
        ("no dot after the time", "ae1bf8e59ec4a5c1b72a8ac7587af64b2d9152105a1a60be51581d8ced1cafec"),
        ("an empty key", "e757940b518a5aac436048fc006aca76e5796721e3381a1d3a012bd16f48aa69"),
        ("the time one second later", "dd86b37d938eb5faf097609e63f57271f774f3bca33bfaeac08b60d305ddb3b4"),
    ];
    for (mistake, digest) in mistakes {
        assert_eq!(verdict(&with_digest(digest)), Err(Reason::Mismatch), "{mistake}");
    }
}

#[test]
fn another_body_is_refused() {
    let changed = br#"{"id":"pay_123","status":"COMPLETED","actualAmount":"1500.01"}"#;
    let reserialised = br#"{"id": "pay_123", "status": "COMPLETED", "actualAmount": "1500.00"}"#;
    let [cut, longer] = [&BODY[..BODY.len() - 1], &[BODY, b"\n"].concat()];
    for body in [&changed[..], reserialised, cut, longer, b""] {
        assert_eq!(verify(&key(), [good()], body, TIME, WINDOW), Err(Reason::Mismatch));
    }
}

#[test]
fn a_header_is_sent_exactly_once() {
    let none: [&str; 0] = [];
    assert_eq!(verify(&key(), none, BODY, TIME, WINDOW), Err(Reason::HeaderAbsent));
    assert_eq!(verify(&key(), [good(), good()], BODY, TIME, WINDOW), Err(Reason::HeaderRepeated));
    for empty in ["", " ", "\t \t"] {
        assert_eq!(verdict(empty), malformed(HeaderError::Empty), "{empty:?}");
    }
}

#[test]
fn a_header_that_is_not_text_is_refused() {
    let header = [good().as_bytes(), b", x=\xff"].concat();
    assert_eq!(verify(&key(), [header], BODY, TIME, WINDOW), malformed(HeaderError::NotText));
}

#[test]
fn a_parameter_given_twice_is_refused_whichever_and_whatever_it_is() {
    let repeats = [
        ("v=1", 5),
        ("t=1700000000", 5),
        ("t=1700000001", 5),
        ("alg=none", 5),
        (&format!("s={DIGEST}"), 5),
        ("x=1, x=2", 6),
    ];
    for (repeat, part) in repeats {
        let header = format!("{}, {repeat}", good());
        assert_eq!(verdict(&header), malformed(HeaderError::Repeated { part }), "{repeat}");
    }
}

#[test]
fn blanks_around_parts_do_not_matter() {
    for separator in [",", ", ", " ,", " \t,\t  "] {
        let header = format!("\t v=1{separator}t=1700000000{separator}alg=hmac-sha256{separator}s={DIGEST} \t");
        assert_eq!(verdict(&header), Ok(()), "{separator:?}");
    }
}

#[test]
fn blanks_within_parts_are_refused() {
    for (header, error) in [
        (good().replace("v=1", "v =1"), HeaderError::Name { part: 1 }),
        (good().replace("v=1", "v= 1"), HeaderError::Version),
        (good().replace("t=", "t= "), HeaderError::TimeNotDigits),
        (good().replace("alg=", "alg= "), HeaderError::Algorithm),
        (good().replace("s=", "s= "), HeaderError::DigestLength { found: 65 }),
        (format!("{}, t =1", good()), HeaderError::Name { part: 5 }),
        // Around parts, only what HTTP calls white space.
        (good().replace(", t", ",\u{a0}t"), HeaderError::Name { part: 2 }),
        (good().replace(", t", ",\nt"), HeaderError::Name { part: 2 }),
    ] {
        assert_eq!(verdict(&header), malformed(error), "{header:?}");
    }
}

#[test]
fn every_part_has_a_name_and_an_equals_sign() {
    for (header, error) in [
        (format!("{},", good()), HeaderError::EmptyPart { part: 5 }),
        (format!(",{}", good()), HeaderError::EmptyPart { part: 1 }),
        (good().replacen(", ", ", ,", 1), HeaderError::EmptyPart { part: 2 }),
        (",".to_owned(), HeaderError::EmptyPart { part: 1 }),
        (format!("{}, x", good()), HeaderError::NoEquals { part: 5 }),
        (good().replace("v=1", "v"), HeaderError::NoEquals { part: 1 }),
        // All of it is the value of v.
        (good().replace(',', ";"), HeaderError::Version),
        (DIGEST.to_owned(), HeaderError::NoEquals { part: 1 }),
        (format!("{}, =x", good()), HeaderError::Name { part: 5 }),
    ] {
        assert_eq!(verdict(&header), malformed(error), "{header:?}");
    }
}

#[test]
fn every_parameter_is_required() {
    let parts = ["v=1", "t=1700000000", "alg=hmac-sha256", &format!("s={DIGEST}")];
    for (left_out, name) in ["v", "t", "alg", "s"].into_iter().enumerate() {
        let mut parts = parts.to_vec();
        parts.remove(left_out);
        assert_eq!(verdict(&parts.join(", ")), malformed(HeaderError::Missing { name }));
    }
}

#[test]
fn parts_come_in_any_order() {
    assert_eq!(verdict(&format!("s={DIGEST}, alg=hmac-sha256, t=1700000000, v=1")), Ok(()));
}

#[test]
fn parameters_of_other_names_are_ignored() {
    for other in ["kid=7", "x=", "x=a=b", "V=2", "S=0", "x=a b"] {
        assert_eq!(verdict(&format!("{}, {other}", good())), Ok(()), "{other}");
        assert_eq!(verdict(&format!("{other}, {}", good())), Ok(()), "{other}");
    }
}

#[test]
fn other_versions_and_algorithms_are_refused() {
    for version in ["2", "01", "", "1.0", "v1", "1=1"] {
        let header = good().replace("v=1", &format!("v={version}"));
        assert_eq!(verdict(&header), malformed(HeaderError::Version), "{version:?}");
    }
    for algorithm in ["HMAC-SHA256", "none", "", "hmac-sha512", "hmac_sha256"] {
        let header = good().replace("hmac-sha256", algorithm);
        assert_eq!(verdict(&header), malformed(HeaderError::Algorithm), "{algorithm:?}");
    }
}

#[test]
fn a_time_has_one_spelling() {
    for time in ["1.7e9", "+1700000000", "-1", "-0", "0x6553f100", "", "1_700_000_000", "1700000000.0", "１７"] {
        assert_eq!(verdict(&with_time(time)), malformed(HeaderError::TimeNotDigits), "{time:?}");
    }
    for time in ["01700000000", "00"] {
        assert_eq!(verdict(&with_time(time)), malformed(HeaderError::TimeLeadingZeros), "{time:?}");
    }
    for time in ["9223372036854775808", "18446744073709551616", "99999999999999999999999999"] {
        assert_eq!(verdict(&with_time(time)), malformed(HeaderError::TimeTooLarge), "{time:?}");
    }
    assert_eq!(Signature::parse(with_time("9223372036854775807").as_bytes()).unwrap().time(), i64::MAX);
}

#[test]
fn a_digest_is_64_lower_case_hexadecimal_digits() {
    for (digest, found) in [("", 0), (&DIGEST[1..], 63), (&format!("{DIGEST}0"), 65), (&"é".repeat(32), 32)] {
        assert_eq!(verdict(&with_digest(digest)), malformed(HeaderError::DigestLength { found }), "{digest:?}");
    }
    let mixed = DIGEST.replacen('f', "F", 1);
    for digest in
        [&DIGEST.to_uppercase(), &mixed, &DIGEST.replacen('f', "g", 1), &"é".repeat(64), &DIGEST.replacen('f', "/", 1)]
    {
        assert_eq!(verdict(&with_digest(digest)), malformed(HeaderError::DigestNotHex), "{digest:?}");
    }
}

#[test]
fn the_window_includes_its_edges() {
    let at = |now| verify(&key(), [good()], BODY, now, WINDOW);
    for now in [TIME - 600, TIME - 1, TIME, TIME + 1, TIME + 600] {
        assert_eq!(at(now), Ok(()));
    }
    assert_eq!(at(TIME + 601), Err(Reason::TooOld { age: 601, window: WINDOW }));
    assert_eq!(at(TIME - 601), Err(Reason::TooNew { ahead: 601, window: WINDOW }));
}

#[test]
fn clocks_at_the_ends_of_time_are_compared() {
    let at = |time, now, window| verify(&key(), [sign(&key(), time, BODY)], BODY, now, window);
    assert_eq!(at(i64::MAX, i64::MIN, 0), Err(Reason::TooNew { ahead: u64::MAX, window: 0 }));
    assert_eq!(at(i64::MAX, i64::MIN, u64::MAX), Ok(()));
    assert_eq!(at(0, i64::MAX, WINDOW), Err(Reason::TooOld { age: i64::MAX.unsigned_abs(), window: WINDOW }));
}

#[test]
fn the_time_of_a_wrong_signature_is_not_spoken_of() {
    assert_eq!(verify(&key(), [good()], b"", TIME + 10_000, WINDOW), Err(Reason::Mismatch));
}

#[test]
fn secrets_that_cannot_be_used_are_refused_before_anything_is_computed() {
    for (secret, error) in [
        ("", SecretError::Empty),
        ("sk_prod_", SecretError::Empty),
        ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", SecretError::Prefix),
        ("sk_prod_not base64", SecretError::NotBase64),
    ] {
        assert_eq!(SigningKey::from_api_key(secret).unwrap_err(), error, "{secret:?}");
    }
}

#[test]
fn no_message_shows_the_secret() {
    let shown = SigningKey::from_api_key("sk_test_SGVsbG8*").unwrap_err().to_string();
    assert!(!shown.contains("SGVsbG8"), "{shown}");
    assert!(!format!("{:?}", key()).contains("AAEC"));
}

#[test]
fn every_bit_of_the_header_counts() {
    let header = good().into_bytes();
    for position in 0..header.len() * 8 {
        let mut changed = header.clone();
        changed[position / 8] ^= 1 << (position % 8);
        let verdict = verify(&key(), [&changed], BODY, TIME, u64::MAX);
        assert!(verdict.is_err(), "{}", String::from_utf8_lossy(&changed));
    }
}
