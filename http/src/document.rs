//! OpenAPI documents, and the page that shows them.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::OpenApi;

/// The page: one file, without anything from elsewhere.
static PAGE: &str = include_str!("page.html");
/// Only the page's own script and style, and only this server to ask.
static PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                            connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves a document at `path`, and the page that shows it at `page`; the page finds the document by its own name.
pub fn router<S: Clone + Send + Sync + 'static>(document: &OpenApi, path: &str, page: &str) -> Router<S> {
    // A document of plain maps and texts always has a JSON form.
    let json = document.to_json().unwrap_or_default();
    let serve_document = get(([(header::CONTENT_TYPE, "application/json")], json));
    let serve_page: MethodRouter<S> = get(async || {
        let headers =
            [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, PAGE_POLICY)];
        (headers, PAGE).into_response()
    });
    Router::new().route(path, serve_document).route(page, serve_page)
}
