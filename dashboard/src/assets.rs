//! Style and script, in the program; under names that change with what is in them, so that browsers keep them.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_db::hex;
use sha2::{Digest, Sha256};

/// Name and content.
const FILES: [(&str, &str); 8] = [
    ("dashboard.css", include_str!("../assets/dashboard.css")),
    ("dashboard.js", include_str!("../assets/dashboard.js")),
    ("files.js", include_str!("../assets/files.js")),
    ("network.js", include_str!("../assets/network.js")),
    ("terminal.js", include_str!("../assets/terminal.js")),
    ("xterm.css", include_str!("../assets/third-party/xterm.css")),
    ("xterm.js", include_str!("../assets/third-party/xterm.js")),
    ("addon-fit.js", include_str!("../assets/third-party/addon-fit.js")),
];
/// Of a hash, so many digits make a name.
const DIGITS: usize = 12;

/// The folder of all: a hash of what is in them.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    FILES.iter().for_each(|(_, text)| hash.update(text));
    hex::encode(&hash.finalize())[..DIGITS].to_owned()
});

/// The path of the folder.
pub(crate) fn folder() -> String {
    format!("/dashboard/-/assets/{}", *VERSION)
}

/// `GET /dashboard/-/assets/{version}/{name}`
pub(crate) async fn show(Path((version, name)): Path<(String, String)>) -> Response {
    let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        return (StatusCode::NOT_FOUND, "There is no such file").into_response();
    };
    let content_type =
        if name.ends_with(".css") { "text/css; charset=utf-8" } else { "text/javascript; charset=utf-8" };
    // A page of another version of this program asks for what is here, and must not keep it.
    let keep = if version == *VERSION { "public, max-age=31536000, immutable" } else { "no-store" };
    ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, keep)], *text).into_response()
}
