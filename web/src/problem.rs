//! Why a request gets no page.

use axum::http::StatusCode;
use sandpiper_http::error::{self, ApiError};
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

impl From<&ApiError> for Problem {
    /// What is for the log only goes there.
    fn from(error: &ApiError) -> Self {
        if let Some(cause) = error.cause() {
            tracing::error!(code = error.code(), cause, "request for a page failed");
        }
        let detail = |detail: &error::Detail| Detail { field: detail.field.clone(), reason: detail.reason.clone() };
        let details = error.details().iter().map(detail).collect();
        Self { details, ..Self::new(error.status(), error.message()) }
    }
}
