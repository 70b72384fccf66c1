//! The Merchant Portal: a page on which a merchant says where a realm's webhooks go.
//!
//! It does what anybody could do with [`crate::merchant::webhook_config`], with the key that is typed into it, so it needs no
//! sessions and no rights of its own. Nothing is loaded from elsewhere, and nothing is kept.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::app::App;
use crate::docs::PAGE_POLICY;

static PAGE: &str = include_str!("page.html");

/// `/portal`
pub fn router() -> Router<App> {
    let page = async || {
        let headers = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
            // A key is typed into it: no address of it goes anywhere.
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (headers, PAGE).into_response()
    };
    Router::new().route("/portal", get(page))
}
