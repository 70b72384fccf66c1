//! Where the database is: a path means a file of SQLite, a URL a PostgreSQL server.
//!
//! A URL may hold a password. What is shown of a location, in messages and with `{:?}`, never does.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use sqlx::any::AnyConnectOptions;

/// What may follow the `?` of a URL. Others are refused here, because the driver would write them, with their values, to
/// the log.
const PARAMETERS: [&str; 13] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// One of the two databases that the store works on.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub enum DatabaseLocation {
    /// The file, made where missing.
    Sqlite(PathBuf),
    /// `postgres://user:password@host:port/name?sslmode=…`
    Postgres(AnyConnectOptions),
}

/// Why a text names no database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    #[error(
        "The database has the unknown scheme {scheme:?}; give the path of a SQLite file, or postgres://user@host/name \
         for PostgreSQL"
    )]
    UnknownScheme { scheme: String },
    #[error("The URL of the database is not of the form postgres://user:password@host:port/name?sslmode=…: {reason}")]
    Malformed { reason: String },
    #[error("The URL of the database has the unknown parameter {name:?}; there are: {}", PARAMETERS.join(", "))]
    UnknownParameter { name: String },
}

impl DatabaseLocation {
    /// The folder that a file of SQLite is in.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            DatabaseLocation::Sqlite(path) => path.parent(),
            DatabaseLocation::Postgres(_) => None,
        }
    }
}

impl FromStr for DatabaseLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        match text.split_once(':') {
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => postgres(text),
            Some((scheme, _)) if is_scheme(scheme) => Err(LocationError::UnknownScheme { scheme: scheme.to_owned() }),
            _ => Ok(DatabaseLocation::Sqlite(PathBuf::from(text))),
        }
    }
}

impl TryFrom<String> for DatabaseLocation {
    type Error = LocationError;

    fn try_from(text: String) -> Result<Self, LocationError> {
        text.parse()
    }
}

impl fmt::Display for DatabaseLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatabaseLocation::Sqlite(path) => path.display().fmt(f),
            DatabaseLocation::Postgres(options) => {
                let mut url = options.database_url.clone();
                // Fails on a URL without a host only, which has no password either. A parameter may be one.
                let _ = url.set_password(None);
                url.set_query(None);
                url.fmt(f)
            }
        }
    }
}

impl fmt::Debug for DatabaseLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn postgres(text: &str) -> Result<DatabaseLocation, LocationError> {
    let options: AnyConnectOptions =
        text.parse().map_err(|error: sqlx::Error| LocationError::Malformed { reason: error.to_string() })?;
    let unknown = options.database_url.query_pairs().find(|(name, _)| !PARAMETERS.contains(&name.as_ref()));
    if let Some((name, _)) = unknown {
        return Err(LocationError::UnknownParameter { name: name.into_owned() });
    }
    Ok(DatabaseLocation::Postgres(options))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<DatabaseLocation>().unwrap_err().to_string()
    }

    #[test]
    fn a_path_means_sqlite_and_a_url_postgresql() {
        let path: DatabaseLocation = "/srv/a b:c.db".parse().unwrap();
        assert!(matches!(path, DatabaseLocation::Sqlite(path) if path == Path::new("/srv/a b:c.db")));
        for text in ["postgres://sp@db.example.test/sp", "postgresql://sp@db.example.test/sp?sslmode=verify-full"] {
            assert!(matches!(text.parse().unwrap(), DatabaseLocation::Postgres(_)));
        }
    }

    #[test]
    fn what_is_shown_holds_no_password() {
        let location: DatabaseLocation =
            "postgres://sp:geheim@db.example.test:5433/sp?password=geheim".parse().unwrap();
        assert_eq!(location.to_string(), "postgres://sp@db.example.test:5433/sp");
        assert_eq!(format!("{location:?}"), location.to_string());
    }

    #[test]
    fn a_refusal_says_what_to_write_and_no_password() {
        let scheme = refused("mysql://sp:geheim@db.example.test/sp");
        assert!(scheme.contains("\"mysql\"") && scheme.contains("postgres://user@host/name"), "{scheme}");
        let parameter = refused("postgres://sp@db.example.test/sp?pasword=geheim");
        assert!(parameter.contains("\"pasword\"") && parameter.contains("sslmode"), "{parameter}");
        let malformed = refused("postgres://sp:geheim@db.example.test:x/sp");
        assert!(malformed.contains("port"), "{malformed}");
        for message in [scheme, parameter, malformed] {
            assert!(!message.contains("geheim"), "{message}");
        }
    }
}
