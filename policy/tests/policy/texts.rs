//! What can be written, and what is refused with which hint.

use proptest::prelude::*;
use sandpiper_policy::{Destination, Entry, Name};

#[test]
fn entries_are_written_in_many_forms_and_shown_in_one() {
    for (text, shown) in [
        ("api.example.test", "api.example.test"),
        ("API.Example.Test.", "api.example.test"),
        ("api.example.test:443", "api.example.test:443"),
        ("api.example.test.:443", "api.example.test:443"),
        ("*.example.test", "*.example.test"),
        ("*.test:1", "*.test:1"),
        ("localhost", "localhost"),
        ("_dmarc.example.test", "_dmarc.example.test"),
        ("xn--bcher-kva.test", "xn--bcher-kva.test"),
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7/32", "198.51.100.7"),
        ("198.51.100.7:65535", "198.51.100.7:65535"),
        ("198.51.100.0/24", "198.51.100.0/24"),
        ("198.51.100.0/24:443", "198.51.100.0/24:443"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("0.0.0.0", "0.0.0.0"),
        ("::/0", "::/0"),
        ("::", "::"),
        ("2001:DB8:0::7", "2001:db8::7"),
        ("2001:db8::1:443", "2001:db8::1:443"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:443", "[2001:db8::7]:443"),
        ("[2001:db8::7/128]:443", "[2001:db8::7]:443"),
        ("[2001:db8::/32]", "2001:db8::/32"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.0/120", "198.51.100.0/24"),
        ("[::ffff:198.51.100.7]:443", "198.51.100.7:443"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::198.51.100.7", "::c633:6407"),
    ] {
        let entry: Entry = text.parse().unwrap();
        assert_eq!(entry.to_string(), shown, "{text}");
    }
}

#[test]
fn a_wrong_entry_is_refused_with_a_hint() {
    for (text, hint) in [
        ("", "is empty"),
        (":443", "is empty"),
        (" api.example.test", "spaces"),
        ("api.example.test ", "spaces"),
        ("a.test,b.test", "not ','"),
        ("a.test b.test", "spaces"),
        ("a.test\n", "spaces"),
        ("a.test\0", "control"),
        ("a\u{a0}b.test", "spaces"),
        ("bücher.test", "punycode"),
        ("１.test", "punycode"),
        ("https://api.example.test", "scheme"),
        ("https://api.example.test:443/", "scheme"),
        ("api.example.test/", "path"),
        ("api.example.test/v1:443", "path"),
        ("api.example.test:443/v1", "path"),
        ("api.example.test/24", "path"),
        ("user@api.example.test", "user"),
        ("user:password@api.example.test", "user"),
        ("*", "0.0.0.0/0 and ::/0"),
        ("*.", "*.example.test"),
        ("*:443", "*.example.test"),
        ("*example.test", "*.example.test"),
        ("*.*.example.test", "*.example.test"),
        ("a.*.test", "*.example.test"),
        ("*.198.51.100.7", "end in a number"),
        ("a..test", "1 to 63"),
        (".test", "1 to 63"),
        ("a.test..", "1 to 63"),
        ("-a.test", "begin or end with `-`"),
        ("a-.test", "begin or end with `-`"),
        ("a.test:", "1 to 65535"),
        ("a.test:0", "1 to 65535"),
        ("a.test:65536", "1 to 65535"),
        ("a.test:99999999999", "1 to 65535"),
        ("a.test:+443", "1 to 65535"),
        ("a.test:0443", "1 to 65535"),
        ("a.test:https", "1 to 65535"),
        ("a.test:-1", "1 to 65535"),
        ("198.51.100", "four numbers"),
        ("198.51.100.256", "four numbers"),
        ("198.51.100.07", "without leading zeros"),
        ("198.51.100.7.8", "four numbers"),
        ("0x7f000001", "four numbers"),
        ("2130706433", "four numbers"),
        ("198.51.100.7/24", "write 198.51.100.0/24"),
        ("198.51.100.0/33", "from 0 to 32"),
        ("198.51.100.0/024", "from 0 to 32"),
        ("198.51.100.0/", "from 0 to 32"),
        ("198.51.100.0/-1", "from 0 to 32"),
        ("198.51.100.0/255.255.255.0", "from 0 to 32"),
        ("198.51.100.0/24/24", "from 0 to 32"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("2001:db8::/129", "from 0 to 128"),
        ("::ffff:198.51.100.7/120", "write 198.51.100.0/24"),
        ("2001:db8::/32:443", "[address/length]:port"),
        ("2001:db8:::7", "IPv6"),
        ("fe80::1%eth0", "IPv6"),
        ("12345::", "IPv6"),
        ("a:b:c", "IPv6"),
        ("[2001:db8::7", "brackets"),
        ("[2001:db8::7]443", "brackets"),
        ("[2001:db8::]/32", "brackets"),
        ("[198.51.100.7]:443", "brackets"),
        ("[api.example.test]:443", "brackets"),
        ("[]", "brackets"),
        ("[2001:db8::7]:", "1 to 65535"),
        ("[2001:db8::7]:443:80", "1 to 65535"),
    ] {
        let message = text.parse::<Entry>().unwrap_err().to_string();
        assert!(message.contains(hint), "{text:?}: {message}");
    }
}

#[test]
fn destinations_are_shown_as_they_are_written() {
    for text in [
        "tcp:api.example.test:443",
        "udp:api.example.test:53",
        "icmp:api.example.test",
        "tcp:198.51.100.7:22",
        "udp:198.51.100.7:65535",
        "icmp:198.51.100.7",
        "tcp:[2001:db8::7]:443",
        "icmp:2001:db8::7",
        "tcp:[::ffff:198.51.100.7]:443",
        "tcp:_-x-.test:1",
    ] {
        let destination: Destination = text.parse().unwrap();
        assert_eq!(destination.to_string(), text);
    }
    let destination: Destination = "icmp:[2001:db8::7]".parse().unwrap();
    assert_eq!(destination.to_string(), "icmp:2001:db8::7");
}

#[test]
fn a_wrong_destination_is_refused_with_a_hint() {
    for (text, hint) in [
        ("", "is empty"),
        ("tcp", "begin with"),
        ("api.example.test:443", "begin with"),
        ("sctp:api.example.test:443", "begin with"),
        ("TCP:api.example.test:443", "begin with"),
        ("tcp://api.example.test:443", "scheme"),
        ("tcp:", "is empty"),
        ("tcp::443", "is empty"),
        ("icmp:", "is empty"),
        ("tcp:api.example.test", "a port must follow"),
        ("tcp:2001:db8::7:443", "[2001:db8::7]:443"),
        ("udp:[2001:db8::7]", "a port must follow"),
        ("tcp:api.example.test:0", "1 to 65535"),
        ("tcp:api.example.test:443x", "1 to 65535"),
        ("icmp:198.51.100.7:1", "no ports"),
        ("icmp:[2001:db8::7]:1", "no ports"),
        ("tcp:*.example.test:443", "not '*'"),
        ("tcp:198.51.100.0/24:443", "not '/'"),
        ("tcp:198.51.100.07:443", "four numbers"),
        ("tcp:[198.51.100.7]:443", "brackets"),
        ("tcp:api example.test:443", "spaces"),
        ("tcp:bücher.test:443", "punycode"),
    ] {
        let message = text.parse::<Destination>().unwrap_err().to_string();
        assert!(message.contains(hint), "{text:?}: {message}");
    }
}

#[test]
fn a_long_text_is_refused_and_not_repeated() {
    let error = "ü".repeat(100_000).parse::<Entry>().unwrap_err();
    assert!(error.to_string().len() < 400);
    let error = "a.".repeat(100_000).parse::<Destination>().unwrap_err();
    assert!(error.to_string().len() < 400);
}

/// What can be read can be written, and then means the same.
fn check_round_trip(text: &str) {
    if let Ok(entry) = text.parse::<Entry>() {
        assert_eq!(entry.to_string().parse().as_ref(), Ok(&entry), "{text:?}");
    }
    if let Ok(destination) = text.parse::<Destination>() {
        assert_eq!(destination.to_string().parse().as_ref(), Ok(&destination), "{text:?}");
    }
    if let Ok(name) = text.parse::<Name>() {
        assert_eq!(name.to_string().parse().as_ref(), Ok(&name), "{text:?}");
        assert_eq!(format!("{}.", text.trim_end_matches('.').to_uppercase()).parse().as_ref(), Ok(&name), "{text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_text_is_an_entry_or_refused(text in any::<String>()) {
        check_round_trip(&text);
    }

    #[test]
    fn any_text_of_the_letters_of_entries_is_an_entry_or_refused(text in "(tcp:|udp:|icmp:)?[a-cA-C0-9f.:/*@\\[\\]_%-]{0,40}") {
        check_round_trip(&text);
    }

    #[test]
    fn entries_survive_being_written(
        host in prop_oneof![
            "[a-z0-9_]{1,8}(\\.[a-zA-Z_]{1,8}){1,4}\\.?",
            "\\*\\.[a-z0-9]{1,8}\\.[a-z]{1,8}",
            any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|address| format!("[{address}]")),
            (any::<std::net::Ipv6Addr>(), 0..=128u8).prop_map(|(address, length)| {
                format!("[{}]", ipnet::Ipv6Net::new(address, length).unwrap().trunc())
            }),
            (any::<std::net::Ipv4Addr>(), 0..=32u8).prop_map(|(address, length)| {
                ipnet::Ipv4Net::new(address, length).unwrap().trunc().to_string()
            }),
        ],
        port in prop::option::of(1..=u16::MAX),
    ) {
        let text = format!("{host}{}", port.map_or(String::new(), |port| format!(":{port}")));
        prop_assert!(text.parse::<Entry>().is_ok(), "{text}");
        check_round_trip(&text);
    }
}
