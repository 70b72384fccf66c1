//! `sandpiper network …` and `net-log`, run as a person would, against an API that answers from memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// One sandbox's network, changed as the API changes it.
struct Api {
    address: SocketAddr,
    network: Arc<Mutex<Value>>,
}

impl Api {
    fn start(network: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let network = Arc::new(Mutex::new(network));
        let shared = Arc::clone(&network);
        // Ends with the process: it holds nothing.
        std::thread::spawn(move || listener.incoming().for_each(|stream| answer(&stream.unwrap(), &shared)));
        Self { address, network }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_sandpiper"))
            .args(["--url", &format!("http://{}", self.address), "--api-key", "spk_test"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// What a command that succeeds prints.
    fn output(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn network(&self) -> Value {
        self.network.lock().unwrap().clone()
    }
}

fn answer(stream: &TcpStream, network: &Mutex<Value>) {
    let mut lines = BufReader::new(stream);
    let (mut request, mut length) = (String::new(), 0);
    lines.read_line(&mut request).unwrap();
    loop {
        let mut header = String::new();
        lines.read_line(&mut header).unwrap();
        match header.trim().to_ascii_lowercase().split_once(": ") {
            None => break,
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    let answer = match request.trim() {
        "GET /v1/sandboxes/sbx1 HTTP/1.1" => json!({"id": "sbx1", "network": *network.lock().unwrap()}),
        "PUT /v1/sandboxes/sbx1/network HTTP/1.1" => {
            let mut network = network.lock().unwrap();
            *network = serde_json::from_slice(&body).unwrap();
            network["apply_status"] = json!("applied");
            json!({"network": *network, "apply_status": "applied"})
        }
        "GET /v1/sandboxes/sbx1/network/denied?limit=100 HTTP/1.1" => json!({"total": 4, "denied": [
            {"time": "2026-08-01T12:00:00Z", "protocol": "tcp", "host": "2001:db8::7", "port": 25,
             "rule": "deny_out \"2001:db8::/32\"", "count": 3},
        ]}),
        unknown => panic!("{unknown}"),
    }
    .to_string();
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
        answer.len()
    )
    .unwrap();
}

fn open() -> Value {
    json!({"allow_internet_access": true, "allow_public_traffic": true, "apply_status": "applied"})
}

#[test]
fn set_sends_what_the_options_say_and_nothing_else() {
    let api = Api::start(open());

    let line = ["network", "set", "sbx1", "--internet", "off", "--allow", "a.test", "--deny", "192.0.2.0/24"];
    assert_eq!(api.output(&line), "sbx1: applied\n");

    assert_eq!(
        api.network(),
        json!({
            "allow_internet_access": false, "allow_out": ["a.test"], "deny_out": ["192.0.2.0/24"],
            "apply_status": "applied",
        })
    );
}

#[test]
fn a_policy_file_may_be_json_or_toml() {
    let api = Api::start(open());
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("policy.json", r#"{"allow_internet_access": false, "allow_out": ["a.test"]}"#),
        ("policy.toml", "allow_internet_access = false\nallow_out = [\"a.test\"]\n"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        api.output(&["network", "set", "sbx1", "--policy", path.to_str().unwrap()]);
        assert_eq!(api.network()["allow_out"], json!(["a.test"]), "{name}");
        *api.network.lock().unwrap() = open();
    }
}

#[test]
fn set_takes_what_show_printed() {
    let policy = json!({
        "allow_internet_access": false, "allow_package_registry_access": true, "allow_out": ["a.test"],
        "deny_out": ["192.0.2.0/24"], "egress_profiles": ["weather"], "apply_status": "applied",
    });
    let mut network = policy.clone();
    network["allow_public_traffic"] = json!(false);
    let api = Api::start(network);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shown.json");
    std::fs::write(&path, api.output(&["--json", "network", "show", "sbx1"])).unwrap();

    api.output(&["network", "set", "sbx1", "--policy", path.to_str().unwrap(), "--allow", "b.test"]);

    let mut expected = policy;
    expected["allow_out"] = json!(["a.test", "b.test"]);
    assert_eq!(api.network(), expected);
}

#[test]
fn a_policy_that_gives_a_field_twice_is_refused_before_anything_is_sent() {
    let api = Api::start(open());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.json");
    std::fs::write(&path, r#"{"deny_out": ["evil.test"], "deny_out": []}"#).unwrap();

    let refused = api.run(&["network", "set", "sbx1", "--policy", path.to_str().unwrap()]);

    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("\"deny_out\" is given twice"), "{text}");
    assert_eq!(api.network(), open());
}

#[test]
fn allow_and_deny_change_their_lists_and_keep_the_rest() {
    let api = Api::start(json!({
        "allow_internet_access": false, "allow_package_registry_access": true, "allow_public_traffic": true,
        "allow_out": ["a.test"], "deny_out": ["b.test"], "egress_profiles": ["weather"], "apply_status": "applied",
    }));

    api.output(&["network", "allow", "sbx1", "b.test", "*.c.test:443"]);
    api.output(&["network", "deny", "sbx1", "192.0.2.0/24"]);
    api.output(&["network", "allow", "sbx1", "--remove", "a.test"]);

    assert_eq!(
        api.network(),
        json!({
            "allow_internet_access": false, "allow_package_registry_access": true,
            "allow_out": ["b.test", "*.c.test:443"], "deny_out": ["192.0.2.0/24"], "egress_profiles": ["weather"],
            "apply_status": "applied",
        })
    );
}

#[test]
fn an_entry_that_is_none_is_refused_before_anything_is_sent() {
    let api = Api::start(open());

    let refused = api.run(&["network", "deny", "sbx1", "https://a.test"]);

    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("https://a.test"), "{text}");
    assert_eq!(api.network(), open());
}

#[test]
fn show_and_net_log_are_tables_or_json() {
    let api = Api::start(open());
    assert!(api.output(&["network", "show", "sbx1"]).contains("everything else"));
    let shown: Value = serde_json::from_str(&api.output(&["--json", "network", "show", "sbx1"])).unwrap();
    assert_eq!(shown, open());

    let table = api.output(&["net-log", "sbx1"]);
    assert!(table.contains("[2001:db8::7]:25") && table.contains("deny_out"), "{table}");
    let entry: Value = serde_json::from_str(&api.output(&["--json", "net-log", "sbx1"])).unwrap();
    assert_eq!((&entry["port"], &entry["count"]), (&json!(25), &json!(3)));
}
