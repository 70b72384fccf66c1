//! Webhook signatures: made by who sends a webhook, verified by who receives it. No input or output, no clock.
//!
//! ```text
//! X-Webhook-Signature: v=1, t=1700000000, alg=hmac-sha256, s=3f7f18bb…   64 hexadecimal digits
//!
//! s = HMAC-SHA256(key, "1700000000" "." body)
//! ```
//!
//! The key is what the base64 part of the secret stands for: of a realm's secret API key, or of the secret of a team's webhook
//! ([`SigningKey`]). The body is what went over the wire, byte for byte: a receiver verifies before it parses.
//!
//! A receiver refuses a webhook unless the header was sent once, follows the grammar ([`Signature`]), signs this body
//! under this key, and was made within a window around the present: [`verify`]. That keeps forgeries out, and replays
//! older than the window. What it does *not* do is tell repeats apart: every attempt of a delivery is signed afresh, so
//! a receiver also de-duplicates by `Idempotency-Key`, and credits a payment once whatever came how often.

#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

mod key;
mod signature;

pub use key::{SecretError, SigningKey, WEBHOOK_SECRET_PREFIX};
pub use signature::{HeaderError, Signature};

/// The header that carries the signature.
pub const SIGNATURE_HEADER: &str = "x-webhook-signature";

/// The header that carries the delivery's id, the same in all its attempts.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// How far, in seconds, the signing time may be from the receiver's clock where nothing else was chosen.
pub const DEFAULT_WINDOW: u64 = 600;

/// Why a webhook is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("There is no X-Webhook-Signature header")]
    HeaderAbsent,
    #[error("The X-Webhook-Signature header was sent more than once")]
    HeaderRepeated,
    #[error("The X-Webhook-Signature header is malformed: {0}")]
    Malformed(#[from] HeaderError),
    #[error("The signature is not of this body, time and secret")]
    Mismatch,
    #[error("The webhook was signed {age} s ago, and {window} s are allowed: it is a replay, or a clock is wrong")]
    TooOld { age: u64, window: u64 },
    #[error("The webhook was signed {ahead} s in the future, and {window} s are allowed: a clock is wrong")]
    TooNew { ahead: u64, window: u64 },
}

/// The value of the signature header for `body`, signed at `time` in seconds since 1970.
///
/// A time before 1970 has no form in the header: what is made of it is refused by every receiver.
///
/// ```
/// use sandpiper_webhook::{SigningKey, sign};
///
/// let key = SigningKey::from_api_key("sk_test_c2VjcmV0")?;
/// assert_eq!(
///     sign(&key, 4102444800, b"{}"),
///     "v=1, t=4102444800, alg=hmac-sha256, s=b138dccf0895cf61d7bdc7026ff36c255f34bcd680a6491dd4478f5e6ac6bf47",
/// );
/// # Ok::<(), sandpiper_webhook::SecretError>(())
/// ```
pub fn sign(key: &SigningKey, time: i64, body: &[u8]) -> String {
    Signature::new(key, time, body).to_string()
}

/// Whether `body` came from who holds `key`, at most `window` seconds before or after `now`.
///
/// `headers` are the values of all signature headers of the request: one that is not exactly one is refused. The
/// signature is checked before its time, so [`Reason::TooOld`] and [`Reason::TooNew`] tell of a signature that is right
/// otherwise.
///
/// ```
/// use sandpiper_webhook::{DEFAULT_WINDOW, Reason, SigningKey, sign, verify};
///
/// let key = SigningKey::from_api_key("sk_test_c2VjcmV0")?;
/// let header = sign(&key, 1_700_000_000, b"{}");
/// assert_eq!(verify(&key, [&header], b"{}", 1_700_000_600, DEFAULT_WINDOW), Ok(()));
/// assert_eq!(verify(&key, [&header], b"{ }", 1_700_000_600, DEFAULT_WINDOW), Err(Reason::Mismatch));
/// # Ok::<(), sandpiper_webhook::SecretError>(())
/// ```
///
/// # Errors
/// Why the webhook must not be trusted: no header or several, a malformed one, another signature, or a time that is
/// more than `window` seconds away from `now`.
pub fn verify<H: AsRef<[u8]>>(
    key: &SigningKey,
    headers: impl IntoIterator<Item = H>,
    body: &[u8],
    now: i64,
    window: u64,
) -> Result<(), Reason> {
    let mut headers = headers.into_iter();
    let header = headers.next().ok_or(Reason::HeaderAbsent)?;
    if headers.next().is_some() {
        return Err(Reason::HeaderRepeated);
    }
    let signature = Signature::parse(header.as_ref())?;
    if !signature.is_of(key, body) {
        return Err(Reason::Mismatch);
    }
    let distance = now.abs_diff(signature.time());
    match distance <= window {
        true => Ok(()),
        false if signature.time() < now => Err(Reason::TooOld { age: distance, window }),
        false => Err(Reason::TooNew { ahead: distance, window }),
    }
}
