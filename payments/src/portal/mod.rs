//! The Merchant Portal: a page on which a merchant says where a realm's webhooks go.
//!
//! It does what anybody could do with [`crate::merchant::webhook_config`], with the key that is typed into it, so it needs no
//! sessions and no rights of its own. Nothing is loaded from elsewhere, and nothing is kept.

use axum::Router;
use axum::http::header;
use axum::routing::{MethodRouter, get};

use crate::state::App;

/// Only the script and style that are served here, none in the page itself, and only this server to ask.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// `/portal`, and what it is made of.
pub fn router() -> Router<App> {
    Router::new()
        .route("/portal", file("text/html; charset=utf-8", include_str!("page.html")))
        .route("/portal.css", file("text/css; charset=utf-8", include_str!("page.css")))
        .route("/portal.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
}

fn file(content_type: &'static str, text: &'static str) -> MethodRouter<App> {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // A key is typed into the page: no address of it goes anywhere.
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    get((headers, text))
}
