//! What people write policies and profiles in: JSON or TOML, with every name given once.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Toml,
}

impl Format {
    /// As the end of the file's name says, else as the content looks.
    pub fn of(path: &Path, text: &str) -> Self {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            _ if text.trim_start().starts_with('{') => Self::Json,
            _ => Self::Toml,
        }
    }
}

/// Values by their names. JSON may give a name twice, and a map would take the last without a word: an error here, for one
/// of the two is not what its author thinks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unique<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = Unique<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names, each with its value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut given: A) -> Result<Self::Value, A::Error> {
        let mut values = BTreeMap::new();
        while let Some(name) = given.next_key::<String>()? {
            if values.contains_key(&name) {
                return Err(A::Error::custom(format_args!("{name:?} is given twice; join the two")));
            }
            values.insert(name, given.next_value()?);
        }
        Ok(Unique(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_given_twice_is_named() {
        let error = serde_json::from_str::<Unique<u8>>(r#"{"a": 1, "b": 2, "a": 1}"#).unwrap_err();
        assert!(error.to_string().starts_with("\"a\" is given twice"), "{error}");
        let error = toml::from_str::<Unique<u8>>("a = 1\nb = 2\na = 1\n").unwrap_err();
        assert!(error.to_string().contains("a = 1"), "{error}");
        assert_eq!(serde_json::from_str::<Unique<u8>>(r#"{"a": 1, "A": 2}"#).unwrap().0.len(), 2);
    }

    #[test]
    fn the_name_of_a_file_goes_before_its_content() {
        for (path, text, format) in [
            ("p.json", "a = 1", Format::Json),
            ("p.JSON", "", Format::Json),
            ("p.toml", "{}", Format::Toml),
            ("p.TOML", "{}", Format::Toml),
            ("-", "\n {}", Format::Json),
            ("-", "a = 1", Format::Toml),
            ("json", "a = 1", Format::Toml),
            ("p.txt", "{}", Format::Json),
        ] {
            assert_eq!(Format::of(Path::new(path), text), format, "{path}: {text}");
        }
    }
}
