//! Style and scripts, in the program; under names that change with what is in them, so that browsers keep them.

use std::sync::LazyLock;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_db::hex;
use sha2::{Digest, Sha256};

/// A file: its name and its content.
pub type File = (&'static str, &'static str);

/// The style of all pages.
pub const STYLE: File = ("pages.css", include_str!("../assets/pages.css"));
/// The script of all pages.
pub const SCRIPT: File = ("pages.js", include_str!("../assets/pages.js"));

/// Of a hash, so many digits make a name.
const DIGITS: usize = 12;

/// The files of one side.
#[derive(Debug)]
pub struct Assets {
    files: &'static [File],
    version: LazyLock<String, fn() -> String>,
}

impl Assets {
    /// `version`: what [`version_of`] makes of these files.
    pub const fn new(files: &'static [File], version: fn() -> String) -> Self {
        Self { files, version: LazyLock::new(version) }
    }

    /// The name of the folder of all: a hash of what is in them.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The response to `GET …/-/assets/{version}/{name}`.
    pub fn show(&self, version: &str, name: &str) -> Response {
        let Some((_, text)) = self.files.iter().find(|(known, _)| *known == name) else {
            return (StatusCode::NOT_FOUND, "There is no such file").into_response();
        };
        let content_type =
            if name.ends_with(".css") { "text/css; charset=utf-8" } else { "text/javascript; charset=utf-8" };
        // A page of another version of this program asks for what is here, and must not keep it.
        let keep = if version == self.version() { "public, max-age=31536000, immutable" } else { "no-store" };
        ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, keep)], *text).into_response()
    }
}

/// A hash of what is in these files.
pub fn version_of(files: &[File]) -> String {
    let mut hash = Sha256::new();
    files.iter().for_each(|(_, text)| hash.update(text));
    hex::encode(&hash.finalize())[..DIGITS].to_owned()
}
