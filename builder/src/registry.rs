//! What a registry has under a name now: one question, for which a run of buildah takes seconds.
//!
//! Whatever goes wrong, it is not known: buildah then takes the image, or says why it cannot.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::registries::{Files, Place};

/// Seconds that one request may take.
const TIMEOUT: &str = "10";

/// Bytes of a response that are read: heads, and tokens.
const MAX_RESPONSE: u64 = 256 << 10;

/// What an image's name may stand for, as buildah asks for it.
const MANIFESTS: &str = "Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The digest of what is under an image's name; `None` where that is not known.
pub(crate) fn digest(reference: &str, files: &Files) -> Option<String> {
    if let Some((_, digest)) = reference.split_once('@') {
        return Some(digest.to_owned()).filter(|digest| is_digest(digest));
    }
    let place = files.place(reference)?;
    let basic = files.authorization(&place.host).map(|encoded| format!("Basic {encoded}"));
    let head = Head::of(&place, None, files)?;
    let head = match head.status {
        401 => {
            let authorization = match head.value("www-authenticate").and_then(Challenge::of) {
                Some(challenge) => format!("Bearer {}", token(&challenge, &place, basic.as_deref(), files)?),
                None => basic?,
            };
            Head::of(&place, Some(&authorization), files)?
        }
        _ => head,
    };
    let digest = head.value("docker-content-digest").filter(|_| head.status == 200)?;
    Some(digest.to_owned()).filter(|digest| is_digest(digest))
}

fn is_digest(text: &str) -> bool {
    let hexadecimal = |digits: &str| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.strip_prefix("sha256:").is_some_and(hexadecimal)
}

/// The start line and the fields of a response.
struct Head {
    status: u16,
    fields: Vec<(String, String)>,
}

impl Head {
    fn of(place: &Place, authorization: Option<&str>, files: &Files) -> Option<Self> {
        Self::read(&curl(&place.url(), &["--head", "--header", MANIFESTS], authorization, place, files)?)
    }

    fn read(text: &str) -> Option<Self> {
        // There may be one of a proxy before it.
        let last = text.trim_end().rsplit("\r\n\r\n").next()?;
        let (start, rest) = last.split_once("\r\n").unwrap_or((last, ""));
        let status = start.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()?;
        let fields = rest.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Some(Self { status, fields: fields.collect() })
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// Whom a registry has its tokens from, and for what: `Bearer realm="…",service="…",scope="…"`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Challenge {
    realm: String,
    service: String,
    scope: String,
}

impl Challenge {
    /// `None` of another scheme than tokens.
    fn of(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut challenge = Self::default();
        while let Some((name, value)) = rest.split_once("=\"") {
            let (value, after) = value.split_once('"')?;
            match name.trim_matches([',', ' ']) {
                "realm" => challenge.realm = value.to_owned(),
                "service" => challenge.service = value.to_owned(),
                "scope" => challenge.scope = value.to_owned(),
                _ => {}
            }
            rest = after;
        }
        Some(challenge)
    }
}

/// A token, by either of the names that registries give it.
#[derive(Deserialize)]
struct Token {
    #[serde(alias = "access_token")]
    token: String,
}

fn token(challenge: &Challenge, place: &Place, basic: Option<&str>, files: &Files) -> Option<String> {
    let Challenge { realm, service, scope } = challenge;
    let fields = [format!("service={service}"), format!("scope={scope}")];
    let options = ["--get", "--data-urlencode", &fields[0], "--data-urlencode", &fields[1]];
    let text = curl(realm, &options, basic, place, files)?;
    Some(serde_json::from_str::<Token>(&text).ok()?.token)
}

/// What curl prints. Credentials are told on its standard input: its arguments are for all of this machine to see.
fn curl(url: &str, options: &[&str], authorization: Option<&str>, place: &Place, files: &Files) -> Option<String> {
    let is_plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') && !text.contains(['"', '\\']);
    let header = match authorization {
        Some(value) if is_plain(value) => format!("header = \"Authorization: {value}\"\n"),
        Some(_) => return None,
        None => String::new(),
    };
    let mut command = Command::new("curl");
    // An address is one address, whatever brackets a registry puts into it.
    command.args(["-q", "--silent", "--globoff", "--max-time", TIMEOUT, "--config", "-"]);
    match place.is_insecure {
        // Reading whom to believe takes longer than the request.
        true if url.starts_with("http://") => command.args(["--proto", "=http"]),
        true => command.args(["--proto", "=https", "--insecure"]),
        false => command.args(["--proto", "=https", "--cacert"]).arg(files.authorities()),
    };
    let mut child = command
        .args(options)
        .args(["--url", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // What does not read it has ended, and says so.
    let _ = child.stdin.take()?.write_all(header.as_bytes());
    let mut text = String::new();
    let read = child.stdout.take()?.take(MAX_RESPONSE).read_to_string(&mut text);
    // More than that is no answer: it would wait to be read.
    let _ = child.kill();
    let _ = child.wait();
    read.is_ok().then_some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use sandpiper_protocol::builder::Registries;
    use sandpiper_protocol::template::Credentials;

    use super::*;

    const DIGEST: &str = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";

    /// A registry that tells a digest to whoever has its token, or else the password, and a token to whoever has that. Its address,
    /// and all that was asked: start lines, with the credentials behind them.
    fn registry(has_tokens: bool) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let own = address.clone();
        let served = thread::spawn(move || {
            let mut asked = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let (start, authorization) = heard(&stream);
                let is_let_in = match authorization.split_once(' ') {
                    Some(("Basic", "dTpw")) => !has_tokens,
                    Some(("Bearer", "t0k3n")) => has_tokens,
                    _ => false,
                };
                let answer = if start.starts_with("GET /token?") && authorization == "Basic dTpw" {
                    "200 OK\r\ncontent-length: 25\r\n\r\n{\"access_token\": \"t0k3n\"}".to_owned()
                } else if is_let_in {
                    format!("200 OK\r\nDocker-Content-Digest: {DIGEST}\r\n\r\n")
                } else if has_tokens {
                    format!(
                        "401 No\r\nWWW-Authenticate: Bearer realm=\"http://{own}/token?a=[1-9]\",service=\"s\",scope=\"pull\"\r\n\r\n"
                    )
                } else {
                    "401 No\r\nWWW-Authenticate: Basic realm=\"x\"\r\n\r\n".to_owned()
                };
                write!(&stream, "HTTP/1.1 {answer}").unwrap();
                asked.push(format!("{start} {authorization}"));
                if is_let_in {
                    break;
                }
            }
            asked
        });
        (address, served)
    }

    fn heard(stream: &TcpStream) -> (String, String) {
        let lines: Vec<String> =
            BufReader::new(stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        let sent = lines.iter().find_map(|line| line.strip_prefix("Authorization: "));
        (lines[0].clone(), sent.unwrap_or_default().to_owned())
    }

    fn files(folder: &std::path::Path, address: &str) -> Files {
        let person = Credentials { username: "u".into(), password: "p".into() };
        let registries = Registries {
            insecure: vec![address.to_owned()],
            credentials: [(address.to_owned(), person)].into(),
            ..Registries::default()
        };
        Files::in_folder(folder, &registries)
    }

    #[test]
    fn a_registry_is_told_who_asks_once_it_wants_to_know_by_a_token_or_a_password() {
        for has_tokens in [true, false] {
            let (folder, (address, served)) = (tempfile::tempdir().unwrap(), registry(has_tokens));
            let found = digest(&format!("{address}/a/b:1"), &files(folder.path(), &address));
            assert_eq!(found.as_deref(), Some(DIGEST));
            let head = "HEAD /v2/a/b/manifests/1 HTTP/1.1";
            let token = "GET /token?a=[1-9]&service=s&scope=pull HTTP/1.1 Basic dTpw".to_owned();
            let expected = match has_tokens {
                true => vec![format!("{head} "), token, format!("{head} Bearer t0k3n")],
                false => vec![format!("{head} "), format!("{head} Basic dTpw")],
            };
            assert_eq!(served.join().unwrap(), expected);
        }
    }

    #[test]
    fn of_a_registry_that_does_not_answer_nothing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(digest(&format!("{address}/a"), &files(folder.path(), &address)), None);
        // What has a digest is what it is.
        let exact = format!("{address}/a@{DIGEST}");
        assert_eq!(digest(&exact, &files(folder.path(), &address)).as_deref(), Some(DIGEST));
    }

    #[test]
    fn the_last_head_counts_and_names_of_fields_are_of_any_case() {
        let text =
            "HTTP/1.1 200 Connection established\r\n\r\nHTTP/2 401 \r\nWWW-Authenticate: Basic realm=\"a\"\r\n\r\n";
        let head = Head::read(text).unwrap();
        assert_eq!((head.status, head.value("www-authenticate")), (401, Some("Basic realm=\"a\"")));
        for text in ["", "\r\n\r\n", "SSH-2.0", "HTTP/1.1", "HTTP/1.1 x"] {
            assert!(Head::read(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_challenge_says_whom_to_ask_for_a_token() {
        let text = "Bearer realm=\"https://a.example/token\",service=\"b\", scope=\"repository:c/d:pull,push\"";
        let challenge = Challenge::of(text).unwrap();
        assert_eq!(challenge.realm, "https://a.example/token");
        assert_eq!((challenge.service.as_str(), challenge.scope.as_str()), ("b", "repository:c/d:pull,push"));
        assert_eq!(Challenge::of("Basic realm=\"a\""), None);
        assert_eq!(Challenge::of("Bearer realm=\"a"), None);
    }

    #[test]
    fn only_what_is_a_digest_is_one() {
        assert!(is_digest(&format!("sha256:{}", "0a".repeat(32))));
        for text in ["", "sha256:", "sha256:0a", &"0a".repeat(32), &format!("sha512:{}", "0a".repeat(32))] {
            assert!(!is_digest(text), "{text}");
        }
    }
}
