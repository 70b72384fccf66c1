//! Responses that may be used more than once: by clients, who ask with their `ETag` whether one is still true, and here,
//! for as long as nothing that can be discovered has changed.
//!
//! What is kept here is kept under the *revision* of all that can be discovered, which is read together with the caller's
//! key. Every change advances it, in whatever process, so a response that is found under it is true. The read that filled
//! a response came after the read of the revision; it may have seen more than that revision has, never less.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use sandpiper_db::hex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::error::RpcError;

/// For discovery: clients may use a response for a minute without asking. It is one merchant's, so nobody else may keep it.
pub const A_MINUTE: &str = "private, max-age=60";
/// For payments: clients ask every time, and are told when nothing has changed.
pub const ASK_AGAIN: &str = "private, no-cache";

/// All that is kept; when it would be more, everything is forgotten and begins to fill again.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// A JSON body with its `ETag`; cheap to clone.
#[derive(Debug, Clone)]
pub struct CachedResponse {
    body: Bytes,
    etag: HeaderValue,
}

impl CachedResponse {
    /// The response that says `body`.
    pub fn new(body: &impl Serialize) -> Result<Self, RpcError> {
        let json = serde_json::to_vec(body).map_err(|error| RpcError::internal(error.to_string()))?;
        Self::of_json(json)
    }

    /// The response of these very bytes.
    pub fn of_json(json: impl Into<Bytes>) -> Result<Self, RpcError> {
        let body = json.into();
        let digest = hex::encode(&Sha256::digest(&body)[..16]);
        let etag =
            HeaderValue::try_from(format!("\"{digest}\"")).map_err(|error| RpcError::internal(error.to_string()))?;
        Ok(Self { body, etag })
    }

    /// 200, or 304 where `request` has it already. `caching` is the `Cache-Control`.
    pub fn respond(&self, request: &HeaderMap, caching: &'static str) -> Response {
        let known = self.is_known_to(request);
        let mut response = Response::new(if known { Body::empty() } else { Body::from(self.body.clone()) });
        *response.status_mut() = if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.etag.clone());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
        headers.insert(header::VARY, HeaderValue::from_static("Authorization, X-API-Key"));
        if !known {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        response
    }

    fn is_known_to(&self, request: &HeaderMap) -> bool {
        let values = request.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
        // A weak tag is as good for this (RFC 9110, 13.1.2).
        values
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == self.etag.as_bytes())
    }
}

/// The responses of one revision.
#[derive(Default)]
pub struct ResponseCache(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    revision: i64,
    responses: HashMap<String, CachedResponse>,
    bytes: usize,
}

impl Kept {
    fn begin(&mut self, revision: i64) {
        *self = Self { revision, ..Self::default() };
    }
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseCache")
    }
}

impl ResponseCache {
    /// The response to `question`, if it was given under this revision.
    pub fn get(&self, revision: i64, question: &str) -> Option<CachedResponse> {
        let kept = self.lock();
        (kept.revision == revision).then(|| kept.responses.get(question).cloned()).flatten()
    }

    /// Keeps a response to a question that was asked under this revision.
    pub fn keep(&self, revision: i64, question: String, response: &CachedResponse) {
        let mut kept = self.lock();
        if revision < kept.revision {
            return;
        }
        let bytes = question.len() + response.body.len();
        if revision > kept.revision || kept.bytes + bytes > MAX_BYTES {
            kept.begin(revision);
        }
        if kept.responses.insert(question, response.clone()).is_none() {
            kept.bytes += bytes;
        }
    }

    /// No panic happens under the lock, and what is kept is whole at every moment.
    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(text: &str) -> CachedResponse {
        CachedResponse::new(&text).unwrap()
    }

    #[test]
    fn an_answer_is_used_under_its_own_revision_only() {
        let responses = ResponseCache::default();
        responses.keep(2, "q".into(), &response("two"));
        assert_eq!(responses.get(2, "q").unwrap().body, "\"two\"");
        assert!(
            responses.get(1, "q").is_none() && responses.get(3, "q").is_none() && responses.get(2, "other").is_none()
        );

        // A slow request must not bring back what is over.
        responses.keep(3, "q".into(), &response("three"));
        responses.keep(2, "q".into(), &response("two"));
        assert!(responses.get(2, "q").is_none());
        assert_eq!(responses.get(3, "q").unwrap().body, "\"three\"");
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let responses = ResponseCache::default();
        let large = response(&"x".repeat(MAX_BYTES / 4));
        for n in 0..20 {
            responses.keep(1, format!("q{n}"), &large);
            assert!(responses.lock().bytes <= MAX_BYTES);
        }
        assert!(responses.get(1, "q19").is_some());
    }

    #[test]
    fn a_client_that_has_the_answer_is_told_so() {
        let response = response("same");
        let mut request = HeaderMap::new();
        assert_eq!(response.respond(&request, A_MINUTE).status(), StatusCode::OK);
        let tag = response.etag.to_str().unwrap();
        for known in [tag.to_owned(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            request.insert(header::IF_NONE_MATCH, known.parse().unwrap());
            assert_eq!(response.respond(&request, A_MINUTE).status(), StatusCode::NOT_MODIFIED, "{known}");
        }
        request.insert(header::IF_NONE_MATCH, "\"other\"".parse().unwrap());
        assert_eq!(response.respond(&request, A_MINUTE).status(), StatusCode::OK);
    }
}
