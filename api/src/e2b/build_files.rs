//! Files that steps copy, by the hash that the SDK gives to their content: `GET /templates/{id}/files/{hash}` says whether
//! they are here, and where to send them otherwise; `PUT` there sends them.
//!
//! The link has its credential in it, for the SDKs send no other: sealed with a key of this host, for the template, the hash and
//! the API key that it was made for. It is good for an hour, and ends when the key is revoked.

use axum::extract::{FromRequestParts, MatchedPath, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use axum::{Extension, Json as JsonBody, Router};
use jiff::SignedDuration;
use sandpiper_db::to_ms;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::ids::UploadId;
use serde::Deserialize;
use serde_json::json;
use url::form_urlencoded;

use super::builds::own_template;
use crate::auth::{Caller, WriteAccess};
use crate::state::App;
use crate::v1::templates::uploads::{self, receive};

/// The route.
pub const PATH: &str = "/templates/{id}/files/{hash}";

/// Keeps what is sealed here apart from other sealed things.
const CONTEXT: &str = "build file ";
const GOOD_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Longest hash.
const MAX_HASH: usize = 128;

/// The routes, to be served behind [`authenticate`].
pub fn router() -> Router<App> {
    Router::new().route(PATH, put(receive_file))
}

/// Whether the body of this request is a file for builds.
pub fn is_upload(parts: &Parts) -> bool {
    parts.method == Method::PUT && parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == PATH)
}

/// Say whether a file is here, and where it is to be sent.
pub async fn link(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, hash)): Path<(String, String)>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let template = own_template(&app, &caller, &id).await?;
    check_hash(&hash)?;
    let present = find(&app, &caller, &hash).await?.is_some();
    let expires = to_ms(app.clock.now().saturating_add(GOOD_FOR).unwrap_or(app.clock.now()));
    let plain = format!("{expires} {} {}", caller.key_id, caller.team.id);
    let sealed = app.vault.seal(&context(&template.id, &hash), plain.as_bytes());
    let sealed = sealed.map_err(|error| ApiError::internal(error.to_string()))?;
    let token: String = form_urlencoded::byte_serialize(sealed.as_bytes()).collect();
    let origin = origin(&app, &headers, &uri)?;
    let url = format!("{origin}/templates/{}/files/{hash}?token={token}", template.id);
    Ok((StatusCode::CREATED, JsonBody(json!({"present": present, "url": url}))).into_response())
}

/// The team's file of this hash.
///
/// # Errors
///
/// 400 where it was not sent.
pub async fn sent(app: &App, caller: &Caller, hash: &str) -> Result<UploadId, ApiError> {
    find(app, caller, hash).await?.ok_or_else(|| {
        ApiError::invalid_field("filesHash", "is of files that are not here; send them where GET …/files/{hash} says")
    })
}

async fn find(app: &App, caller: &Caller, hash: &str) -> Result<Option<UploadId>, ApiError> {
    match app.store.uploads.by_hash(&caller.team.id, hash).await? {
        Some(id) => Ok(uploads::kept(app, caller, &id).await?.map(|row| row.id)),
        None => Ok(None),
    }
}

/// Receive a file.
async fn receive_file(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path((_, hash)): Path<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    check_hash(&hash)?;
    let row = receive(&app, &caller, Some(&hash), request).await?;
    Ok((StatusCode::OK, Extension(Acted(vec![row.id.to_string()]))).into_response())
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

/// Establishes who sends a file: the caller for whom the link was made. Requests have no other way in.
pub async fn authenticate(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let caller = async {
        let Path((template, hash)) =
            Path::<(String, String)>::from_request_parts(&mut parts, &app).await.map_err(|_| not_a_link())?;
        let Query(Token { token }) = Query::try_from_uri(&parts.uri).map_err(|_| not_a_link())?;
        caller(&app, &context(&template, &hash), &token).await
    };
    match caller.await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => error.into_response(),
    }
}

async fn caller(app: &App, context: &str, token: &str) -> Result<Caller, ApiError> {
    let plain = app.vault.unseal(context, token).map_err(|_| not_a_link())?;
    let plain = std::str::from_utf8(&plain).map_err(|_| not_a_link())?;
    let (expires, of) = plain.split_once(' ').ok_or_else(not_a_link)?;
    let (key_id, team) = of.split_once(' ').ok_or_else(not_a_link)?;
    if expires.parse::<i64>().map_err(|_| not_a_link())? <= to_ms(app.clock.now()) {
        return Err(not_a_link());
    }
    let caller = Caller::again(app, key_id, team).await?.ok_or_else(not_a_link)?;
    app.rate_limits.check(&caller.key_id)?;
    Ok(caller)
}

fn context(template: &str, hash: &str) -> String {
    format!("{CONTEXT}{template} {hash}")
}

/// Where the caller reaches this API: as it asked for it.
fn origin(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<String, ApiError> {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = named.or_else(|| uri.authority().map(|authority| authority.as_str()));
    let host = host.ok_or_else(|| ApiError::invalid_field("Host", "is required, so that a link can be made"))?;
    // A proxy that ends TLS says so; it concerns nothing but the link in this response.
    let is_forwarded = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let scheme = if app.settings.has_tls || is_forwarded { "https" } else { "http" };
    Ok(format!("{scheme}://{host}"))
}

fn check_hash(hash: &str) -> Result<(), ApiError> {
    let is_plain = (1..=MAX_HASH).contains(&hash.len()) && hash.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { Ok(()) } else { Err(ApiError::invalid_field("hash", "must be a hash: letters and digits")) }
}

fn not_a_link() -> ApiError {
    ApiError::unauthorized("The link is not good any more; ask for another one")
}
