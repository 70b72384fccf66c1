//! `sandpiper network explain`, as it is run: what it prints, and how it ends.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn explain(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandpiper"));
    // No host is there to be asked.
    command.args(["network", "explain"]).args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).unwrap()
}

/// What standard error says of a run that decided nothing.
fn refusal(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    String::from_utf8(output.stderr).unwrap()
}

/// A run to whose standard input this is written.
fn piped(mut command: Command, text: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

const POLICY: &str = r#"{
    "allow_internet_access": false,
    "allow_out": ["api.example.test", "*.Example.test:8443"],
    "deny_out": ["203.0.113.7"],
    "egress_profile": "ci",
    "egress_profiles": null
}"#;
const PROFILES: &str = r#"{"profiles": {"ci": ["203.0.113.0/24", "ci.example.test:22"]}}"#;

#[test]
fn each_destination_has_a_line_with_its_verdict_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    let policy = file(folder.path(), "policy.json", POLICY);
    let profiles = file(folder.path(), "profiles", PROFILES);
    let destinations = [
        "tcp:api.example.test:443",
        "udp:API.example.test:443",
        "tcp:b.example.test:8443",
        "icmp:203.0.113.7",
        "tcp:203.0.113.8:22",
        "tcp:[2001:db8::7]:443",
        "tcp:169.254.169.254:80",
    ];
    let output = explain(&["--policy", &policy, "--profiles", &profiles]).args(destinations).output().unwrap();
    assert_eq!(
        stdout(&output),
        "\
allow  tcp:api.example.test:443  allow_out \"api.example.test\"
deny   udp:API.example.test:443  allowed by name only, which UDP to port 443 hides
allow  tcp:b.example.test:8443  allow_out \"*.example.test:8443\"
deny   icmp:203.0.113.7  deny_out \"203.0.113.7\"
allow  tcp:203.0.113.8:22  profile ci \"203.0.113.0/24\"
deny   tcp:[2001:db8::7]:443  allow_internet_access false
deny   tcp:169.254.169.254:80  protected range 169.254.0.0/16
"
    );
}

#[test]
fn json_is_one_array() {
    let folder = tempfile::tempdir().unwrap();
    let policy = file(folder.path(), "policy.json", "{}");
    let output = explain(&["--json", "--policy", &policy, "tcp:a.test:1", "icmp:10.0.0.1"]).output().unwrap();
    let answers: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(
        answers,
        json!([
            {"destination": "tcp:a.test:1", "verdict": "allow", "rule": "allow_internet_access true"},
            {"destination": "icmp:10.0.0.1", "verdict": "deny", "rule": "protected range 10.0.0.0/8"},
        ])
    );
}

#[test]
fn a_policy_is_json_or_toml_by_its_name_or_else_by_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let (json, toml) = (r#"{"allow_out": ["a.test:1"]}"#, "allow_out = [\"a.test:1\"]\n");
    let allowed = "allow  tcp:a.test:1  allow_out \"a.test:1\"\n";
    for (name, text) in [("p.json", json), ("p.toml", toml), ("P.TOML", toml), ("json", json), ("toml", toml)] {
        let policy = file(folder.path(), name, text);
        assert_eq!(stdout(&explain(&["--policy", &policy, "tcp:a.test:1"]).output().unwrap()), allowed, "{name}");
    }
    for text in [json, toml] {
        let output = piped(explain(&["--policy", "-", "tcp:a.test:1"]), text);
        assert_eq!(stdout(&output), allowed, "{text}");
    }
}

#[test]
fn a_field_that_is_given_twice_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, field) in [
        ("policy.json", r#"{"deny_out": ["evil.test"], "deny_out": []}"#, "\"deny_out\" is given twice"),
        ("policy.toml", "deny_out = [\"evil.test\"]\ndeny_out = []\n", "deny_out = []"),
    ] {
        let policy = file(folder.path(), name, text);
        let message = refusal(explain(&["--policy", &policy, "tcp:evil.test:443"]));
        assert!(message.contains(field), "{message}");
    }
}

#[test]
fn what_network_show_prints_is_a_policy() {
    let shown = json!({
        "allow_internet_access": false, "allow_package_registry_access": false, "allow_public_traffic": true,
        "allow_out": ["a.test"], "deny_out": [], "egress_profiles": ["ci"], "apply_status": "pending",
        "apply_error": "The host does not answer",
    });
    let folder = tempfile::tempdir().unwrap();
    let profiles = file(folder.path(), "profiles", PROFILES);
    let command = explain(&["--policy", "-", "--profiles", &profiles, "tcp:a.test:1", "tcp:ci.example.test:22"]);
    assert_eq!(
        stdout(&piped(command, &shown.to_string())),
        "allow  tcp:a.test:1  allow_out \"a.test\"\nallow  tcp:ci.example.test:22  profile ci \"ci.example.test:22\"\n"
    );
}

#[test]
fn the_operators_ranges_are_regarded() {
    let folder = tempfile::tempdir().unwrap();
    let policy = file(folder.path(), "policy.json", "{}");
    let ranges = ["--allow-range", "10.0.0.0/8", "--deny-range", "10.1.0.0/16", "--deny-range", "198.51.100.7"];
    let destinations = ["tcp:10.0.0.1:1", "tcp:10.1.0.1:1", "tcp:198.51.100.7:1"];
    let output = explain(&["--policy", &policy]).args(ranges).args(destinations).output().unwrap();
    assert_eq!(
        stdout(&output),
        "\
allow  tcp:10.0.0.1:1  allow_internet_access true
deny   tcp:10.1.0.1:1  protected range 10.1.0.0/16
deny   tcp:198.51.100.7:1  protected range 198.51.100.7/32
"
    );
}

#[test]
fn a_wrong_policy_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (text, hint) in [
        (r#"{"deny_outs": []}"#, "unknown field `deny_outs`"),
        (r#"{"allow_public_traffic": false}"#, "unknown field `allow_public_traffic`"),
        (r#"{"apply_status": "applied", "state": "ready"}"#, "unknown field `state`"),
        (r#"{"deny_out": ["a.test", 5]}"#, "deny_out[1]: invalid type"),
        (
            r#"{"deny_out": ["a.test", "https://b.test"]}"#,
            "deny_out[1]: \"https://b.test\" is no entry: leave out the scheme",
        ),
        (
            r#"{"egress_profiles": ["ci"]}"#,
            "give the host's file of profiles with --profiles: There is no egress profile \"ci\"; there are none",
        ),
        ("[]", "is not a policy"),
        ("", "is not a policy"),
    ] {
        let policy = file(folder.path(), "policy.json", text);
        let message = refusal(explain(&["--policy", &policy, "tcp:a.test:1"]));
        assert!(message.contains(hint), "{text}: {message}");
    }
    let output = piped(explain(&["--policy", "-", "tcp:a.test:1"]), "");
    assert_eq!(output.status.code(), Some(2), "a command before the pipe that failed");
    let message = refusal(explain(&["--policy", "/nonexistent.json", "tcp:a.test:1"]));
    assert!(message.contains("/nonexistent.json"), "{message}");
}

#[test]
fn a_wrong_destination_or_range_is_refused_before_anything_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let policy = file(folder.path(), "policy.json", "{}");
    let message = refusal(explain(&["--policy", &policy, "tcp:a.test:1", "tcp:b.test"]));
    assert!(message.contains("\"tcp:b.test\" is no destination: a port must follow"), "{message}");
    let message = refusal(explain(&["--policy", &policy, "--allow-range", "10.0.0.1/8", "tcp:a.test:1"]));
    assert!(message.contains("write 10.0.0.0/8"), "{message}");
    let message = refusal(explain(&["--policy", &policy, "--deny-range", "a.test", "tcp:a.test:1"]));
    assert!(message.contains("without a port"), "{message}");
    let message = refusal(explain(&["--policy", &policy]));
    assert!(message.contains("<DEST>"), "{message}");
}

#[test]
fn package_registries_that_no_profile_lists_are_pointed_out() {
    let folder = tempfile::tempdir().unwrap();
    let policy = r#"{"allow_internet_access": false, "allow_package_registry_access": true}"#;
    let policy = file(folder.path(), "policy.json", policy);
    let (other, registries) = (
        file(folder.path(), "other.json", PROFILES),
        file(folder.path(), "registries.json", r#"{"profiles": {"package-registries": []}}"#),
    );
    let hint = "hint: allow_package_registry_access opens nothing here: ";
    for (profiles, advice) in [
        (vec![], format!("{hint}give the host's file of profiles with --profiles\n")),
        (vec!["--profiles", &other], format!("{hint}{other} has no profile package-registries\n")),
        (vec!["--profiles", &registries], String::new()),
    ] {
        let output = explain(&["--policy", &policy, "tcp:a.test:1"]).args(profiles).output().unwrap();
        assert_eq!(stdout(&output), "deny   tcp:a.test:1  allow_internet_access false\n");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), advice);
    }
}

#[test]
fn wrong_profiles_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let policy = file(folder.path(), "policy.json", "{}");
    let profiles = file(folder.path(), "profiles.json", r#"{"profiles": {"ci": ["a.test", "b test"]}}"#);
    let message = refusal(explain(&["--policy", &policy, "--profiles", &profiles, "tcp:a.test:1"]));
    assert!(message.contains("Entry 2 of profile ci: \"b test\" is no entry: leave out spaces"), "{message}");
    let message = refusal(explain(&["--policy", &policy, "--profiles", "/nonexistent", "tcp:a.test:1"]));
    assert!(message.contains("/nonexistent"), "{message}");
}
