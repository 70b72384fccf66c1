//! Texts in pages.

use axum::http::{HeaderMap, header};
use jiff::Timestamp;

/// A time as people read it, in UTC.
pub fn time(at: &Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Where a page was reached: scheme and host.
pub fn own_url(headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or("localhost");
    let origin = text(header::ORIGIN).filter(|origin| origin.split_once("://").is_some_and(|(_, rest)| rest == host));
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = name == "localhost" || name == "[::1]" || name.starts_with("127.");
    let scheme = if is_local { "http" } else { "https" };
    origin.map_or_else(|| format!("{scheme}://{host}"), str::to_owned)
}
