//! The conditions of a request (RFC 9110, section 13), and what they are about: which state of a file is meant.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use hyper::header::{
    AsHeaderName, HeaderMap, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
};

/// What tells two states of a file apart.
#[derive(Debug, Clone)]
pub(super) struct Validators {
    /// A strong entity tag, in its quotation marks. It is another one after every upload, which makes a new file; two
    /// changes in place within one tick of the clock that leave the size as it is share theirs.
    pub(super) tag: String,
    /// In whole seconds, as HTTP has it.
    pub(super) modified: SystemTime,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    NotModified,
    Failed,
}

impl Validators {
    pub(super) fn of(meta: &Metadata) -> Self {
        let tag = format!("\"{:x}-{:x}-{:x}.{:x}\"", meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        let seconds = Duration::from_secs(u64::try_from(meta.mtime()).unwrap_or_default());
        Self { tag, modified: SystemTime::UNIX_EPOCH + seconds }
    }

    /// Judges the conditions of a `GET`, in the order that RFC 9110, section 13.2.2 gives.
    pub(super) fn judge(&self, headers: &HeaderMap) -> Verdict {
        if headers.contains_key(IF_MATCH) {
            if !self.is_listed(headers, IF_MATCH, |tag| tag) {
                return Verdict::Failed;
            }
        } else if date(headers, IF_UNMODIFIED_SINCE).is_some_and(|date| self.modified > date) {
            return Verdict::Failed;
        }
        let is_known = match headers.contains_key(IF_NONE_MATCH) {
            true => self.is_listed(headers, IF_NONE_MATCH, |tag| tag.strip_prefix("W/").unwrap_or(tag)),
            false => date(headers, IF_MODIFIED_SINCE).is_some_and(|date| self.modified <= date),
        };
        if is_known { Verdict::NotModified } else { Verdict::Send }
    }

    /// Whether a range may be sent: what the client has of the file is of this state.
    pub(super) fn allow_range(&self, headers: &HeaderMap) -> bool {
        let Some(wanted) = headers.get(IF_RANGE) else { return true };
        wanted.as_bytes() == self.tag.as_bytes() || date(headers, IF_RANGE) == Some(self.modified)
    }

    /// Whether a list of tags has this one, each compared by what `of` makes of it, or is `*`.
    fn is_listed(&self, headers: &HeaderMap, name: impl AsHeaderName, of: fn(&str) -> &str) -> bool {
        let lists = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || of(tag) == self.tag)
    }
}

fn date(headers: &HeaderMap, name: impl AsHeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    const BEFORE: &str = "Sat, 01 Aug 2026 11:59:59 GMT";
    const NOON: &str = "Sat, 01 Aug 2026 12:00:00 GMT";

    fn validators() -> Validators {
        Validators { tag: "\"a\"".into(), modified: httpdate::parse_http_date(NOON).unwrap() }
    }

    fn judge(fields: &[(HeaderName, &'static str)]) -> Verdict {
        let field = |(name, value): &(HeaderName, &'static str)| (name.clone(), HeaderValue::from_static(value));
        validators().judge(&fields.iter().map(field).collect())
    }

    #[test]
    fn what_the_client_has_is_not_sent_again() {
        assert_eq!(judge(&[(IF_NONE_MATCH, "\"b\", W/\"a\"")]), Verdict::NotModified);
        assert_eq!(judge(&[(IF_NONE_MATCH, "*")]), Verdict::NotModified);
        assert_eq!(judge(&[(IF_NONE_MATCH, "\"b\"")]), Verdict::Send);
        assert_eq!(judge(&[(IF_MODIFIED_SINCE, NOON)]), Verdict::NotModified);
        assert_eq!(judge(&[(IF_MODIFIED_SINCE, BEFORE)]), Verdict::Send);
        assert_eq!(judge(&[(IF_NONE_MATCH, "\"b\""), (IF_MODIFIED_SINCE, NOON)]), Verdict::Send, "the tag counts");
        assert_eq!(judge(&[(IF_MODIFIED_SINCE, "noon")]), Verdict::Send);
    }

    #[test]
    fn another_state_than_the_wanted_one_is_not_sent() {
        assert_eq!(judge(&[(IF_MATCH, "\"b\"")]), Verdict::Failed);
        assert_eq!(judge(&[(IF_MATCH, "W/\"a\"")]), Verdict::Failed, "this needs a strong tag");
        assert_eq!(judge(&[(IF_MATCH, "\"a\"")]), Verdict::Send);
        assert_eq!(judge(&[(IF_UNMODIFIED_SINCE, BEFORE)]), Verdict::Failed);
        assert_eq!(judge(&[(IF_UNMODIFIED_SINCE, NOON)]), Verdict::Send);
    }

    #[test]
    fn a_range_is_of_the_state_that_it_goes_on_from() {
        let allows = |value: &'static str| {
            validators().allow_range(&HeaderMap::from_iter([(IF_RANGE, HeaderValue::from_static(value))]))
        };
        assert!(validators().allow_range(&HeaderMap::new()));
        assert!(allows("\"a\"") && allows(NOON));
        assert!(!allows("\"b\"") && !allows("W/\"a\"") && !allows(BEFORE));
    }
}
