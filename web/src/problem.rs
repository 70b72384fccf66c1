//! Why a request gets no page.

use axum::http::StatusCode;
use serde::Deserialize;

/// A response other than success.
#[derive(Debug, Clone, Deserialize)]
pub struct Problem {
    #[serde(skip)]
    pub status: StatusCode,
    /// For people.
    pub message: String,
    #[serde(default)]
    pub details: Vec<Detail>,
    #[serde(default)]
    pub request_id: String,
}

/// A field that is refused.
#[derive(Debug, Clone, Deserialize)]
pub struct Detail {
    pub field: String,
    pub reason: String,
}

impl Problem {
    /// One that the pages themselves see.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), details: Vec::new(), request_id: String::new() }
    }

    /// What is wrong, with the fields that are.
    pub fn in_words(&self) -> String {
        if self.details.is_empty() {
            return self.message.clone();
        }
        let words: Vec<_> = self.details.iter().map(|detail| format!("{} {}", detail.field, detail.reason)).collect();
        words.join("; ")
    }
}
