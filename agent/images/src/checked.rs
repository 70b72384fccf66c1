//! Documents with a checksum, so that what is torn or changed on the disk is never taken for what was written.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The field with the digest of all others. A document of an agent that wrote none has none.
const CHECKSUM: &str = "checksum";

/// What is wrong with a text.
#[derive(Debug, thiserror::Error)]
pub enum DamageError {
    #[error("it is something else")]
    Form(#[from] serde_json::Error),
    #[error("its checksum is another one")]
    Checksum,
}

/// The text of a document, an object, with a checksum.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn encode(document: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut value = serde_json::to_value(document)?;
    value[CHECKSUM] = checksum(&value).into();
    serde_json::to_vec_pretty(&value)
}

/// The document in a text. One that was written without a checksum is believed.
///
/// # Errors
/// The text is not JSON, or not what was written.
pub fn verify(text: &[u8]) -> Result<Value, DamageError> {
    let mut value: Value = serde_json::from_slice(text)?;
    let written = value.as_object_mut().and_then(|fields| fields.remove(CHECKSUM));
    if written.is_some_and(|written| written != checksum(&value)) { Err(DamageError::Checksum) } else { Ok(value) }
}

/// SHA-256 of a document's fields in the order of their names, in hex.
fn checksum(fields: &Value) -> String {
    let digest = Sha256::digest(fields.to_string());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
