//! How an attempt went: the response of the receiver, or why there was no response.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What the status of a response means for the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has it.
    Acknowledged,
    /// Another time it may take it.
    Again,
    /// It will never take it: redirects, which are not followed, and what is wrong with the request in its eyes.
    Refused,
}

impl Verdict {
    /// The verdict of a status.
    pub fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Verdict::Acknowledged,
            408 | 425 | 429 | 500..=599 => Verdict::Again,
            _ => Verdict::Refused,
        }
    }
}

/// The head of a response, and the beginning of its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookResponse {
    pub status: u16,
    /// How long the receiver asks to wait, if it does so in a valid way.
    pub retry_after: Option<Duration>,
    /// For people: text, without control characters. Empty if the response acknowledges, whose body nobody waits for.
    pub snippet: String,
}

/// Why there was no response, or no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {detail}")]
pub struct Failure {
    pub class: FailureClass,
    /// For people.
    pub detail: String,
}

impl Failure {
    /// A failure of this class, explained.
    pub fn new(class: FailureClass, detail: impl fmt::Display) -> Self {
        Self { class, detail: snippet(detail.to_string().as_bytes()) }
    }
}

/// Kinds of failures, as metrics, lists and the attempt log name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The name did not resolve.
    Dns,
    /// An address is not public: nothing was connected to.
    BlockedAddress,
    /// Nobody listens there.
    Refused,
    /// The network does not lead there.
    Unreachable,
    /// The certificate or the handshake is wrong.
    Tls,
    /// The connection was closed before the response.
    Reset,
    /// What came is not HTTP, or has a head beyond all measure.
    Malformed,
    /// The attempt took as long as it may.
    Timeout,
    /// The process that made the attempt died in it: nobody knows how it went.
    Interrupted,
    /// There is no secret to sign with: nothing was sent.
    NoSigningSecret,
    /// Whether there is one could not be read: nothing was sent.
    SecretUnread,
}

impl FailureClass {
    /// All of them.
    pub const ALL: [FailureClass; 11] = [
        FailureClass::Dns,
        FailureClass::BlockedAddress,
        FailureClass::Refused,
        FailureClass::Unreachable,
        FailureClass::Tls,
        FailureClass::Reset,
        FailureClass::Malformed,
        FailureClass::Timeout,
        FailureClass::Interrupted,
        FailureClass::NoSigningSecret,
        FailureClass::SecretUnread,
    ];

    /// Its name in JSON, metrics and the database.
    pub fn as_str(self) -> &'static str {
        match self {
            FailureClass::Dns => "dns",
            FailureClass::BlockedAddress => "blocked_address",
            FailureClass::Refused => "refused",
            FailureClass::Unreachable => "unreachable",
            FailureClass::Tls => "tls",
            FailureClass::Reset => "reset",
            FailureClass::Malformed => "malformed",
            FailureClass::Timeout => "timeout",
            FailureClass::Interrupted => "interrupted",
            FailureClass::NoSigningSecret => "no_signing_secret",
            FailureClass::SecretUnread => "secret_unread",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FailureClass {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        FailureClass::ALL.into_iter().find(|class| class.as_str() == text).ok_or(())
    }
}

/// Bytes of a foreign text that are kept.
pub const SNIPPET: usize = 1024;

/// The beginning of a foreign text, safe to store and to show: valid UTF-8, no control characters but line breaks and tabs,
/// at most [`SNIPPET`] bytes.
pub fn snippet(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().min(SNIPPET));
    for character in String::from_utf8_lossy(&bytes[..bytes.len().min(SNIPPET)]).chars() {
        if text.len() + character.len_utf8() > SNIPPET {
            break;
        }
        if !character.is_control() || matches!(character, '\n' | '\t') {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_status_has_the_verdict_of_the_specification() {
        let of = |verdict| (100..=999).filter(move |status| Verdict::of_status(*status) == verdict);
        assert!(of(Verdict::Acknowledged).eq(200..=299));
        assert!(of(Verdict::Again).eq([408, 425, 429].into_iter().chain(500..=599)));
        for status in [101, 199, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 409, 410, 413, 422, 600, 999] {
            assert_eq!(Verdict::of_status(status), Verdict::Refused, "{status}");
        }
    }

    #[test]
    fn names_of_failures_are_unambiguous() {
        for class in FailureClass::ALL {
            assert_eq!(class.as_str().parse(), Ok(class));
        }
    }

    proptest! {
        #[test]
        fn a_snippet_is_short_text_whatever_came(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let text = snippet(&bytes);
            prop_assert!(text.len() <= SNIPPET);
            prop_assert!(text.chars().all(|character| !character.is_control() || matches!(character, '\n' | '\t')));
        }
    }
}
