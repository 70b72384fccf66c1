//! Tables of policies, each with what it says about destinations.

use serde_json::{Value, json};

use crate::policy;

/// Checks `(destination, verdict, rule)` for each.
fn check(json: Value, expected: &[(&str, &str, &str)]) {
    let policy = policy(json.clone());
    for (destination, verdict, rule) in expected {
        let decision = policy.decide(&destination.parse().unwrap());
        let found = (decision.verdict.to_string(), decision.rule.to_string());
        assert_eq!(found, ((*verdict).to_owned(), (*rule).to_owned()), "{destination} by {json}");
    }
}

#[test]
fn by_default_all_but_protected_ranges_is_allowed() {
    let internet = "allow_internet_access true";
    check(
        json!({}),
        &[
            ("tcp:api.example.test:443", "allow", internet),
            ("udp:api.example.test:443", "allow", internet),
            ("tcp:resolver.example.test:853", "allow", internet),
            ("tcp:198.51.100.7:22", "allow", internet),
            ("udp:198.51.100.7:53", "allow", internet),
            ("udp:198.51.100.7:443", "allow", internet),
            ("icmp:198.51.100.7", "allow", internet),
            ("tcp:[2001:db8::7]:443", "allow", internet),
            ("icmp:2001:db8::7", "allow", internet),
            ("tcp:[::ffff:198.51.100.7]:443", "allow", internet),
            ("tcp:169.254.169.254:80", "deny", "protected range 169.254.0.0/16"),
            ("tcp:127.0.0.1:80", "deny", "protected range 127.0.0.0/8"),
            ("tcp:10.0.0.1:22", "deny", "protected range 10.0.0.0/8"),
            ("udp:100.64.0.1:53", "deny", "protected range 100.64.0.0/10"),
            ("icmp:192.168.1.1", "deny", "protected range 192.168.0.0/16"),
            ("udp:224.0.0.251:5353", "deny", "protected range 224.0.0.0/4"),
            ("udp:255.255.255.255:67", "deny", "protected range 240.0.0.0/4"),
            ("tcp:[::1]:80", "deny", "protected range ::/96"),
            ("tcp:[::198.51.100.7]:80", "deny", "protected range ::/96"),
            ("tcp:[::ffff:0:198.51.100.7]:80", "deny", "protected range ::ffff:0:0:0/96"),
            ("tcp:[fe80::1]:80", "deny", "protected range fe80::/10"),
            ("tcp:[fec0::1]:80", "deny", "protected range fec0::/10"),
            ("tcp:[fd5a:5a::1]:53", "deny", "protected range fc00::/7"),
            ("tcp:[64:ff9b::7f00:1]:80", "deny", "protected range 64:ff9b::/96"),
            ("tcp:[2002:7f00:1::]:80", "deny", "protected range 2002::/16"),
            ("tcp:[::ffff:10.0.0.1]:22", "deny", "protected range 10.0.0.0/8"),
        ],
    );
}

#[test]
fn localhost_is_opened_by_nothing() {
    let (local, internet) = ("localhost, and every name below it, is the sandbox itself", "allow_internet_access true");
    check(
        json!({
            "allow_out": ["localhost", "*.localhost", "db.localhost:5432", "0.0.0.0/0"],
            "deny_out": ["localhost"],
            "egress_profiles": ["ci"],
        }),
        &[
            ("tcp:localhost:80", "deny", local),
            ("tcp:LOCALHOST.:443", "deny", local),
            ("udp:localhost:443", "deny", local),
            ("icmp:localhost", "deny", local),
            ("tcp:db.localhost:5432", "deny", local),
            ("tcp:a.b.localhost:80", "deny", local),
            ("tcp:localhost.test:80", "allow", "allow_out \"0.0.0.0/0\""),
        ],
    );
    check(json!({}), &[("tcp:app.localhost:80", "deny", local), ("tcp:notlocalhost:80", "allow", internet)]);
}

#[test]
fn without_the_internet_nothing_is_allowed() {
    let internet = "allow_internet_access false";
    check(
        json!({"allow_internet_access": false}),
        &[
            ("tcp:api.example.test:443", "deny", internet),
            ("udp:198.51.100.7:53", "deny", internet),
            ("icmp:2001:db8::7", "deny", internet),
            ("tcp:10.0.0.1:22", "deny", "protected range 10.0.0.0/8"),
        ],
    );
}

#[test]
fn names_are_allowed_without_the_internet() {
    let (api, hidden) = ("allow_out \"api.example.test\"", "allowed by name only, which UDP to port 443 hides");
    let (wild, port) = ("allow_out \"*.wild.example.test\"", "allow_out \"port.example.test:8443\"");
    let none = "allow_internet_access false";
    check(
        json!({
            "allow_internet_access": false,
            "allow_out": ["API.Example.test.", "*.wild.example.test", "port.example.test:8443"],
        }),
        &[
            ("tcp:api.example.test:443", "allow", api),
            ("tcp:api.EXAMPLE.test.:22", "allow", api),
            ("udp:api.example.test:53", "allow", api),
            ("icmp:api.example.test", "allow", api),
            ("udp:api.example.test:443", "deny", hidden),
            ("tcp:x.api.example.test:443", "deny", none),
            ("tcp:example.test:443", "deny", none),
            ("tcp:a.wild.example.test:443", "allow", wild),
            ("tcp:a.b.c.wild.example.test:443", "allow", wild),
            ("tcp:wild.example.test:443", "deny", none),
            ("tcp:notwild.example.test:443", "deny", none),
            ("tcp:wild.example.test.other.test:443", "deny", none),
            ("tcp:port.example.test:8443", "allow", port),
            ("udp:port.example.test:8443", "allow", port),
            ("tcp:port.example.test:443", "deny", none),
            ("icmp:port.example.test", "deny", none),
            ("tcp:198.51.100.7:443", "deny", none),
        ],
    );
}

#[test]
fn ranges_are_allowed_without_the_internet() {
    let (range, port) = ("allow_out \"198.51.100.0/24\"", "allow_out \"203.0.113.7:443\"");
    let none = "allow_internet_access false";
    check(
        json!({
            "allow_internet_access": false,
            "allow_out": [
                "198.51.100.0/24", "198.51.100.9:443", "203.0.113.7:443", "2001:db8::/32", "[2001:db9::7]:443",
                "::ffff:192.0.2.1", "10.0.0.1", "169.254.169.254:80",
            ],
        }),
        &[
            ("tcp:198.51.100.0:1", "allow", range),
            ("udp:198.51.100.255:65535", "allow", range),
            ("udp:198.51.100.255:443", "allow", range),
            ("icmp:198.51.100.1", "allow", range),
            ("tcp:198.51.100.9:443", "allow", "allow_out \"198.51.100.9:443\""),
            ("tcp:198.51.100.9:80", "allow", range),
            ("icmp:198.51.100.9", "allow", range),
            ("tcp:[::ffff:198.51.100.1]:80", "allow", range),
            ("tcp:198.51.99.255:80", "deny", none),
            ("tcp:198.51.101.0:80", "deny", none),
            ("tcp:203.0.113.7:443", "allow", port),
            ("udp:203.0.113.7:443", "allow", port),
            ("tcp:203.0.113.7:80", "deny", none),
            ("icmp:203.0.113.7", "deny", none),
            ("tcp:192.0.2.1:80", "allow", "allow_out \"192.0.2.1\""),
            ("tcp:[2001:db8:ffff::1]:80", "allow", "allow_out \"2001:db8::/32\""),
            ("icmp:2001:db8::1", "allow", "allow_out \"2001:db8::/32\""),
            ("tcp:[2001:db9::7]:443", "allow", "allow_out \"[2001:db9::7]:443\""),
            ("tcp:[2001:db9::7]:80", "deny", none),
            ("tcp:10.0.0.1:80", "deny", "protected range 10.0.0.0/8"),
            ("tcp:169.254.169.254:80", "deny", "protected range 169.254.0.0/16"),
            ("tcp:api.example.test:443", "deny", none),
        ],
    );
}

#[test]
fn what_deny_out_names_is_cut_from_the_internet() {
    let (bad, below) = ("deny_out \"bad.example.test\"", "deny_out \"*.below.example.test\"");
    let (range, internet) = ("deny_out \"198.51.100.0/24\"", "allow_internet_access true");
    let resolver = "another resolver, while deny_out has names";
    check(
        json!({"deny_out": ["bad.example.test", "*.below.example.test", "ssh.example.test:22", "198.51.100.0/24"]}),
        &[
            ("tcp:bad.example.test:443", "deny", bad),
            ("udp:bad.example.test:443", "deny", bad),
            ("icmp:bad.example.test", "deny", bad),
            ("tcp:good.bad.example.test:443", "allow", internet),
            ("tcp:a.below.example.test:80", "deny", below),
            ("tcp:below.example.test:80", "allow", internet),
            ("tcp:ssh.example.test:22", "deny", "deny_out \"ssh.example.test:22\""),
            ("tcp:ssh.example.test:443", "allow", internet),
            ("icmp:ssh.example.test", "allow", internet),
            ("udp:good.example.test:443", "allow", internet),
            ("udp:203.0.113.7:443", "allow", internet),
            ("tcp:198.51.100.7:443", "deny", range),
            ("udp:198.51.100.7:53", "deny", range),
            ("udp:203.0.113.53:53", "deny", resolver),
            ("tcp:203.0.113.53:53", "deny", resolver),
            ("tcp:203.0.113.53:853", "deny", resolver),
            ("udp:[2001:db8::53]:853", "deny", resolver),
            ("tcp:resolver.example.test:853", "deny", resolver),
            ("icmp:203.0.113.53", "allow", internet),
        ],
    );
}

#[test]
fn other_resolvers_are_free_while_no_name_is_denied_and_can_be_named() {
    let internet = "allow_internet_access true";
    check(
        json!({"deny_out": ["198.51.100.0/24"]}),
        &[("udp:203.0.113.53:53", "allow", internet), ("tcp:203.0.113.53:853", "allow", internet)],
    );
    check(
        json!({"deny_out": ["bad.example.test"], "allow_out": ["203.0.113.53:53"], "allow_package_registry_access": true}),
        &[
            ("udp:203.0.113.53:53", "allow", "allow_out \"203.0.113.53:53\""),
            ("tcp:203.0.113.80:853", "allow", "profile package-registries \"203.0.113.80\""),
            ("tcp:203.0.113.53:853", "deny", "another resolver, while deny_out has names"),
        ],
    );
    check(
        json!({"allow_internet_access": false, "deny_out": ["bad.example.test"]}),
        &[("udp:203.0.113.53:53", "deny", "allow_internet_access false")],
    );
}

#[test]
fn allow_out_beats_deny_out() {
    let all = "deny_out \"0.0.0.0/0\"";
    check(
        json!({
            "allow_out": ["api.example.test", "198.51.100.7", "203.0.113.0/24:443"],
            "deny_out": ["*.example.test", "0.0.0.0/0", "203.0.113.9:443"],
        }),
        &[
            ("tcp:api.example.test:443", "allow", "allow_out \"api.example.test\""),
            ("tcp:other.example.test:443", "deny", "deny_out \"*.example.test\""),
            ("tcp:elsewhere.test:443", "deny", all),
            ("tcp:198.51.100.7:22", "allow", "allow_out \"198.51.100.7\""),
            ("tcp:198.51.100.8:22", "deny", all),
            ("tcp:203.0.113.9:443", "allow", "allow_out \"203.0.113.0/24:443\""),
            ("tcp:203.0.113.9:80", "deny", all),
            ("icmp:203.0.113.9", "deny", all),
            ("tcp:10.0.0.1:80", "deny", "protected range 10.0.0.0/8"),
            // By the letter: this is no IPv4 address.
            ("tcp:[2001:db8::7]:443", "allow", "allow_internet_access true"),
        ],
    );
}

#[test]
fn ports_of_allow_out_open_a_denied_name_for_them_alone() {
    check(
        json!({"allow_out": ["api.example.test:443"], "deny_out": ["api.example.test"]}),
        &[
            ("tcp:api.example.test:443", "allow", "allow_out \"api.example.test:443\""),
            ("tcp:api.example.test:80", "deny", "deny_out \"api.example.test\""),
            ("icmp:api.example.test", "deny", "deny_out \"api.example.test\""),
            ("udp:api.example.test:443", "deny", "allowed by name only, which UDP to port 443 hides"),
        ],
    );
}

#[test]
fn profiles_open_what_deny_out_leaves() {
    let (registry, mirror) = (
        "profile package-registries \"registry.example.test:443\"",
        "profile package-registries \"*.mirror.example.test\"",
    );
    let (ci, none) = ("profile ci \"203.0.113.128/25:8080\"", "allow_internet_access false");
    check(
        json!({
            "allow_internet_access": false,
            "allow_package_registry_access": true,
            "egress_profiles": ["ci", "ci"],
            "deny_out": ["bad.mirror.example.test", "203.0.113.200"],
        }),
        &[
            ("tcp:registry.example.test:443", "allow", registry),
            ("tcp:registry.example.test:80", "deny", none),
            ("tcp:a.mirror.example.test:80", "allow", mirror),
            ("tcp:bad.mirror.example.test:80", "deny", "deny_out \"bad.mirror.example.test\""),
            ("tcp:ci.example.test:22", "allow", "profile ci \"ci.example.test\""),
            ("udp:ci.example.test:443", "deny", "allowed by name only, which UDP to port 443 hides"),
            ("udp:203.0.113.80:443", "allow", "profile package-registries \"203.0.113.80\""),
            ("tcp:203.0.113.129:8080", "allow", ci),
            ("tcp:203.0.113.200:8080", "deny", "deny_out \"203.0.113.200\""),
            ("tcp:203.0.113.129:80", "deny", none),
        ],
    );
    check(json!({"allow_internet_access": false}), &[("tcp:registry.example.test:443", "deny", none)]);
    check(
        json!({"allow_internet_access": false, "egress_profiles": ["package-registries"]}),
        &[("tcp:registry.example.test:443", "allow", registry), ("tcp:ci.example.test:22", "deny", none)],
    );
}

#[test]
fn an_entry_for_all_addresses_is_one_for_all_names() {
    let (web, none) = ("allow_out \"0.0.0.0/0:443\"", "allow_internet_access false");
    check(
        json!({"allow_internet_access": false, "allow_out": ["0.0.0.0/0:443", "198.51.100.7"]}),
        &[
            ("tcp:any.example.test:443", "allow", web),
            ("udp:any.example.test:443", "allow", web),
            ("tcp:any.example.test:80", "deny", none),
            ("tcp:203.0.113.7:443", "allow", web),
            ("tcp:10.0.0.1:443", "deny", "protected range 10.0.0.0/8"),
            ("tcp:[2001:db8::7]:443", "deny", none),
        ],
    );
    let halves = "deny_out \"0.0.0.0/1\"";
    check(
        json!({"deny_out": ["0.0.0.0/8", "0.0.0.0/1", "128.0.0.0/1"]}),
        &[("tcp:any.example.test:443", "deny", halves), ("icmp:any.example.test", "deny", halves)],
    );
    let internet = "allow_internet_access true";
    check(json!({"deny_out": ["::/0", "0.0.0.0/1"]}), &[("tcp:any.example.test:443", "allow", internet)]);
}

#[test]
fn on_a_port_ranges_for_it_and_those_for_all_ports_add_up() {
    let (internet, denied) = ("allow_internet_access true", "deny_out \"0.0.0.0/1:443\"");
    for others in [vec!["128.0.0.0/1"], vec!["128.0.0.0/1", "128.0.0.0/1:443"], vec!["128.0.0.0/2", "192.0.0.0/2"]] {
        let denying = [&["0.0.0.0/1:443"], others.as_slice()].concat();
        check(
            json!({"deny_out": denying}),
            &[
                ("tcp:any.example.test:443", "deny", denied),
                ("tcp:any.example.test:80", "allow", internet),
                ("icmp:any.example.test", "allow", internet),
            ],
        );
    }
    check(
        json!({"deny_out": ["0.0.0.0/1:443", "128.0.0.0/1:80", "128.0.0.0/2", "224.0.0.0/3"]}),
        &[("tcp:any.example.test:443", "allow", internet), ("tcp:any.example.test:80", "allow", internet)],
    );
    let allowing = json!({"allow_internet_access": false, "allow_out": ["0.0.0.0/0:443", "198.51.100.0/24", "::/0"]});
    check(
        allowing,
        &[
            ("tcp:any.example.test:443", "allow", "allow_out \"0.0.0.0/0:443\""),
            ("tcp:any.example.test:80", "deny", "allow_internet_access false"),
        ],
    );
}

#[test]
fn of_several_entries_the_narrowest_is_named() {
    check(
        json!({
            "allow_internet_access": false,
            "allow_out": [
                "*.test", "*.example.test", "*.example.test:443", "a.example.test:443", "a.example.test", "a.example.test",
                "0.0.0.0/0", "198.51.0.0/16", "198.51.100.0/24:443", "198.51.100.0/24",
            ],
        }),
        &[
            ("tcp:a.example.test:443", "allow", "allow_out \"a.example.test:443\""),
            ("tcp:a.example.test:80", "allow", "allow_out \"a.example.test\""),
            ("tcp:b.example.test:443", "allow", "allow_out \"*.example.test:443\""),
            ("tcp:b.example.test:80", "allow", "allow_out \"*.example.test\""),
            ("tcp:other.test:80", "allow", "allow_out \"*.test\""),
            ("tcp:other.invalid:80", "allow", "allow_out \"0.0.0.0/0\""),
            ("tcp:198.51.100.7:443", "allow", "allow_out \"198.51.100.0/24:443\""),
            ("icmp:198.51.100.7", "allow", "allow_out \"198.51.100.0/24\""),
            ("tcp:198.51.7.7:443", "allow", "allow_out \"198.51.0.0/16\""),
            ("tcp:203.0.113.7:443", "allow", "allow_out \"0.0.0.0/0\""),
        ],
    );
}
