//! How a template, or a version of it, is named: `slug`, `slug:3`, `slug:ver…`, `slug:tag`; of another team's, `team/slug`.

use std::fmt;
use std::str::FromStr;

/// What a person wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) slug: String,
    /// A number, an id or a tag.
    pub(super) version: Option<String>,
}

impl FromStr for Reference {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (slug, version) = match text.split_once(':') {
            Some((slug, version)) => (slug, Some(version)),
            None => (text, None),
        };
        let has_names = slug.split('/').all(is_name) && slug.split('/').count() <= 2;
        if !has_names || version.is_some_and(|version| !is_name(version)) {
            return Err("write it as SLUG or SLUG:VERSION, of letters, digits, `-`, `_` and `.`");
        }
        Ok(Self { slug: slug.to_owned(), version: version.map(str::to_owned) })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.slug)?;
        self.version.iter().try_for_each(|version| write!(f, ":{version}"))
    }
}

/// A reference whose version, if it has one, is a tag for what is to be built.
pub(super) fn parse_target(text: &str) -> Result<Reference, &'static str> {
    let reference: Reference = text.parse()?;
    match &reference.version {
        Some(tag) if tag.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("a tag is no number: versions are numbered by themselves")
        }
        _ if reference.slug.contains('/') => Err("another team's template is not for you to build"),
        _ => Ok(reference),
    }
}

/// Whether this may be part of a path, as it is. What is allowed in a name is for the API to say.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_follows_a_colon() {
        for text in ["app", "app:3", "app:ver01", "my-app_2.x:latest", "acme/app:3"] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        for text in ["", ":1", "app:", "a/b/c", "/b", "app:..", "..", "app:1:2", "app?x", "a b"] {
            text.parse::<Reference>().expect_err(text);
        }
        assert!(parse_target("app:latest").is_ok() && parse_target("app").is_ok());
        assert!(parse_target("app:3").is_err() && parse_target("acme/app").is_err());
    }
}
