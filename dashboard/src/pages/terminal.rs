//! The page with a sandbox's terminal, and its WebSocket.

use askama::Template;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::Problem;
use crate::data_planes::{DataPlanes, Opened};
use crate::form::{foreign, is_from_here, once};
use crate::response::{POLICY, Refusal, page};
use crate::terminal::{Wanted, run};
use crate::view::segment;
use crate::visit::Visit;

/// Largest message of a page: what is pasted comes in pieces.
const MAX_MESSAGE: usize = 64 << 10;

#[derive(Template)]
#[template(path = "terminal.html")]
struct Page {
    visit: Visit,
    id: String,
    /// Lets the styles work that the terminal makes, and no others.
    nonce: String,
}

/// `GET /dashboard/{team}/sandboxes/{id}/terminal`
pub(crate) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Result<Response, Refusal> {
    visit.get::<serde::de::IgnoredAny>(&format!("/v1/sandboxes/{}", segment(&id))).await?;
    let nonce = once();
    let policy = POLICY.replace("style-src 'self'", &format!("style-src 'self' 'nonce-{nonce}'"));
    let mut response = page(&Page { visit, id, nonce });
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}

/// `GET /dashboard/{team}/sandboxes/{id}/terminal/socket`: only for a page of this host, which browsers say of every WebSocket.
pub(crate) async fn open(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
    State(data_planes): State<DataPlanes>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    if !is_from_here(&headers) {
        return Err(foreign().into());
    }
    let busy =
        || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too many terminals are open; close one of your team's");
    let place = data_planes.terminals.place(&visit.team.slug).ok_or_else(busy)?;
    let path = format!("/v1/sandboxes/{}/session", segment(&id));
    let Opened { session } = visit.call(Method::POST, &path).await?;
    let data_plane = data_planes.of(&session);
    let serve = async move |socket| {
        let _place = place;
        run(socket, data_plane, wanted).await;
    };
    Ok(upgrade.max_message_size(MAX_MESSAGE).on_upgrade(serve).into_response())
}
