//! `sandpiper webhook verify` and `sign`, as they are run: what they print, and how they end.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "sk_prod_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const BODY: &str = r#"{"id":"pay_123","status":"COMPLETED","actualAmount":"1500.00"}"#;
const HEADER: &str =
    "v=1, t=1700000000, alg=hmac-sha256, s=3f7f18bbe20d61545089f6e1aed1d64c0b057e497922011716985c520442f6ff";

/// A folder with a body and a secret in it, which commands are run in.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("body"), BODY).unwrap();
        fs::write(folder.path().join("sk"), format!("{SECRET}\n")).unwrap();
        Self(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandpiper"));
        command.arg("webhook").args(arguments).current_dir(self.0.path()).env_clear().stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Verifies the body at the time it was signed.
    fn verify(&self, arguments: &[&str]) -> Output {
        self.run(&[&["verify", "--body", "body", "--now", "1700000000"], arguments].concat())
    }
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// What standard error says of a refused webhook.
fn refusal(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    assert_eq!(stdout(output), "");
    stderr(output)
}

#[test]
fn a_genuine_webhook_is_valid() {
    let output = Folder::new().verify(&["--secret", SECRET, "--header", HEADER]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!((stdout(&output), stderr(&output)), ("valid\n", ""));
}

#[test]
fn the_window_is_600_seconds_unless_given() {
    let folder = Folder::new();
    let verify = |more: &[&str]| {
        let fixed = ["verify", "--secret", SECRET, "--header", HEADER, "--body", "body"];
        folder.run(&[&fixed, more].concat())
    };
    assert!(verify(&["--now", "1700000600"]).status.success());
    assert!(verify(&["--now", "1699999400"]).status.success());
    assert!(verify(&["--now", "1700000005", "--window", "5"]).status.success());
    assert_eq!(
        refusal(&verify(&["--now", "1700000601"])),
        "refused: The webhook was signed 601 s ago, and 600 s are allowed: it is a replay, or a clock is wrong\n"
    );
    assert_eq!(
        refusal(&verify(&["--now", "1699999994", "--window", "5"])),
        "refused: The webhook was signed 6 s in the future, and 5 s are allowed: a clock is wrong\n"
    );
    // Without --now it is compared with the clock.
    assert!(refusal(&verify(&[])).contains("s ago"));
}

#[test]
fn a_refused_webhook_has_its_reason_on_standard_error() {
    let folder = Folder::new();
    let with_header = |header: &str| refusal(&folder.verify(&["--secret", SECRET, "--header", header])).to_owned();

    assert_eq!(with_header(""), "refused: The X-Webhook-Signature header is malformed: it is empty\n");
    assert_eq!(with_header("-1"), "refused: The X-Webhook-Signature header is malformed: part 1 has no \"=\"\n");
    assert_eq!(
        with_header(&HEADER.replace("v=1", "v=2")),
        "refused: The X-Webhook-Signature header is malformed: v is not 1\n"
    );
    assert_eq!(
        with_header(&HEADER.replace("6ff", "600")),
        "refused: The signature is not of this body, time and secret\n"
    );
    assert_eq!(refusal(&folder.verify(&["--secret", SECRET])), "refused: There is no X-Webhook-Signature header\n");
    assert_eq!(
        refusal(&folder.verify(&["--secret", SECRET, "--header", HEADER, "--header", HEADER])),
        "refused: The X-Webhook-Signature header was sent more than once\n"
    );
}

#[test]
fn without_a_usable_secret_everything_is_refused() {
    let folder = Folder::new();
    let with_secret = |secret: &str| refusal(&folder.verify(&["--secret", secret, "--header", HEADER])).to_owned();

    assert!(with_secret("").contains("missing or empty"));
    assert!(with_secret("sk_prod_").contains("missing or empty"));
    assert!(with_secret("-").contains("does not begin with sk_test_, sk_prod_ or whsec_"));
    assert!(with_secret("AAECAwQF").contains("does not begin with sk_test_, sk_prod_ or whsec_"));
    assert!(with_secret("sk_prod_AAE").contains("base64"));
    assert!(refusal(&folder.verify(&["--header", HEADER])).contains("missing or empty"));
}

#[test]
fn the_secret_comes_from_a_file_or_the_environment_too() {
    let folder = Folder::new();
    let from_file = folder.verify(&["--secret-file", "sk", "--header", HEADER]);
    let verify = ["verify", "--body", "body", "--now", "1700000000", "--header", HEADER];
    let from_environment = folder.command(&verify).env("SANDPIPER_WEBHOOK_SECRET", SECRET).output().unwrap();
    // What the command line says comes first.
    let mut both = folder.command(&[&verify[..], &["--secret-file", "sk"]].concat());
    let both = both.env("SANDPIPER_WEBHOOK_SECRET", "sk_prod_AAAA").output().unwrap();

    for output in [from_file, from_environment, both] {
        assert_eq!(stdout(&output), "valid\n", "{}", stderr(&output));
    }
}

#[test]
fn a_body_comes_from_standard_input_byte_for_byte() {
    let folder = Folder::new();
    let verify = |body: &str| {
        let arguments = ["verify", "--secret", SECRET, "--header", HEADER, "--now", "1700000000", "--body", "-"];
        let mut command = folder.command(&arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    assert_eq!(stdout(&verify(BODY)), "valid\n");
    assert!(refusal(&verify(&format!("{BODY}\n"))).contains("not of this body"));
}

#[test]
fn misuse_is_told_apart_from_a_refusal() {
    let folder = Folder::new();
    let good = ["verify", "--secret", SECRET, "--header", HEADER, "--body", "body"];
    for more in [
        &["--now", "soon"][..],
        &["--now", "-5"],
        &["--now", "9223372036854775808"],
        &["--window", "1.5"],
        &["--window", "-1"],
        &["--secret-file", "sk"],
        &["--port", "1"],
    ] {
        let output = folder.run(&[&good, more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}");
    }
    for arguments in [
        &["verify"][..],
        &["verify", "--secret", SECRET, "--header", HEADER],
        &["verify", "--secret", SECRET, "--header", HEADER, "--body", "missing"],
        &["verify", "--secret-file", "missing", "--header", HEADER, "--body", "body"],
        &["sign", "--secret", SECRET, "--body", "missing"],
        &["sign", "--secret", SECRET, "--body", "body", "--time", "-1"],
        &["sign", "--secret", "", "--body", "body"],
        &["sign", "--secret", "sk_live_AAAA", "--body", "body"],
        &["listen", "--secret", SECRET],
        &["listen", "--secret", "sk_live_AAAA", "--port", "0"],
        &["listen", "--secret", SECRET, "--port", "0", "--store", "body/inner"],
        &["listen", "--secret", SECRET, "--port", "0", "--cert", "body"],
        &["listen", "--secret", SECRET, "--port", "0", "--cert", "body", "--key", "sk"],
    ] {
        let output = folder.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
        assert!(!stderr(&output).is_empty());
    }
}

#[test]
fn what_is_signed_is_the_header_and_verifies() {
    let folder = Folder::new();
    let signed = folder.run(&["sign", "--secret-file", "sk", "--body", "body", "--time", "1700000000"]);
    assert_eq!(stdout(&signed), format!("{HEADER}\n"));

    let signed_now = folder.run(&["sign", "--secret-file", "sk", "--body", "body"]);
    let header = stdout(&signed_now).trim_end();
    let verified = folder.run(&["verify", "--secret-file", "sk", "--body", "body", "--header", header]);
    assert_eq!(stdout(&verified), "valid\n", "{}", stderr(&verified));
}

#[test]
fn scripts_read_json() {
    let folder = Folder::new();
    let read = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();

    let valid = folder.verify(&["--json", "--secret", SECRET, "--header", HEADER]);
    assert_eq!((valid.status.code(), read(&valid)), (Some(0), json!({"valid": true})));

    let refused = folder.verify(&["--json", "--secret", SECRET]);
    let reason = "There is no X-Webhook-Signature header";
    assert_eq!((refused.status.code(), read(&refused)), (Some(1), json!({"valid": false, "reason": reason})));
    assert_eq!(stderr(&refused), format!("refused: {reason}\n"));

    let signed = folder.run(&["sign", "--json", "--secret", SECRET, "--body", "body", "--time", "1700000000"]);
    assert_eq!(read(&signed), json!({"header": "X-Webhook-Signature", "value": HEADER}));
}

#[test]
fn help_shows_examples() {
    for command in ["verify", "sign", "listen"] {
        let help = Folder::new().run(&[command, "--help"]);
        assert!(stdout(&help).contains("Examples:"), "{command}");
    }
}
