//! `X-Metadata-<key>`: what a client wants to be remembered of a file, as extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use hyper::header::HeaderMap;
use rustix::fs::{XattrFlags, flistxattr, flistxattr_query, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::FileError;

/// What the names of the attributes begin with.
pub(in crate::serve) const ATTRIBUTE: &str = "user.e2b.";

/// What the names of the fields begin with; hyper gives them in lower case.
const FIELD: &str = "x-metadata-";

/// Keys of one file, and bytes of keys and values: what one block of ext4 takes, the only place that it has for them.
const MAX_KEYS: usize = 32;
const MAX_BYTES: usize = 3_072;

/// What is to be remembered of a file, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// What the fields of a request say.
    ///
    /// # Errors
    ///
    /// Fails if there is more than fits, or a field that is no text or has no key.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, FileError> {
        let mut metadata = BTreeMap::new();
        let mut bytes = 0;
        for (name, value) in headers {
            let Some(key) = name.as_str().strip_prefix(FIELD) else { continue };
            let value = std::str::from_utf8(value.as_bytes()).ok().filter(|_| !key.is_empty());
            let value = value.ok_or_else(|| FileError::Request(format!("{name}: this is not a key and a text")))?;
            bytes += key.len() + value.len();
            metadata.insert(key.to_owned(), value.to_owned());
        }
        if metadata.len() > MAX_KEYS || bytes > MAX_BYTES {
            let message = format!("The metadata is over the limit of {MAX_KEYS} keys and {MAX_BYTES} bytes");
            return Err(FileError::Request(message));
        }
        Ok(Self(metadata))
    }

    pub(super) fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }

    /// Makes this all that is remembered of an open file.
    pub(super) fn replace(&self, file: impl AsFd) -> io::Result<()> {
        match remove_others(&file, &self.0) {
            // Then there is nothing to remove either.
            Err(Errno::NOTSUP) if self.0.is_empty() => return Ok(()),
            other => other.map_err(explain)?,
        }
        self.0.iter().try_for_each(|(key, value)| {
            fsetxattr(&file, format!("{ATTRIBUTE}{key}"), value.as_bytes(), XattrFlags::empty()).map_err(explain)
        })
    }
}

fn remove_others(file: impl AsFd, kept: &BTreeMap<String, String>) -> rustix::io::Result<()> {
    let mut names = vec![0; flistxattr_query(&file)?];
    let length = flistxattr(&file, &mut names)?;
    names.truncate(length);
    for name in names.split(|byte| *byte == 0) {
        let key = name.strip_prefix(ATTRIBUTE.as_bytes());
        if key.is_some_and(|key| !kept.keys().any(|kept| kept.as_bytes() == key)) {
            fremovexattr(&file, name)?;
        }
    }
    Ok(())
}

fn explain(error: Errno) -> io::Error {
    match error {
        Errno::NOTSUP => io::Error::new(io::ErrorKind::InvalidInput, "this file system keeps no metadata of files"),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let field =
            |(name, value): &(&str, &str)| (name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
        fields.iter().map(field).collect()
    }

    #[test]
    fn fields_are_read_by_key() {
        let metadata = Metadata::of(&headers(&[("X-Metadata-Origin", "a b"), ("x-meta", "no")])).unwrap();
        assert_eq!(metadata.into_map(), BTreeMap::from([("origin".to_owned(), "a b".to_owned())]));
    }

    #[test]
    fn what_does_not_fit_or_has_no_key_is_refused() {
        let long = "x".repeat(MAX_BYTES);
        assert!(Metadata::of(&headers(&[("x-metadata-a", &long)])).is_err());
        assert!(Metadata::of(&headers(&[("x-metadata-", "x")])).is_err());
        let names: Vec<_> = (0..=MAX_KEYS).map(|number| format!("x-metadata-{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(Metadata::of(&headers(&many)).is_err());
        assert!(Metadata::of(&headers(&many[1..])).is_ok());
    }
}
