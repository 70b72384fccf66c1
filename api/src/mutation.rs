//! What is common to every request that changes something.
//!
//! * The caller is established before the body is read.
//! * With an `Idempotency-Key`, the request is done once: a repetition gets the kept response, or is told that the first is
//!   still at work, or that the key was used for something else. Credentials in a response are never kept: a repetition gets
//!   new ones. Where they stand is the business of each [`Face`] of the API. A key that may only read has no part in this, nor has one
//!   of a team that is disabled: the handler refuses it.
//! * The work goes on when the client hangs up or the time-out strikes, so a half-made sandbox is never left behind by a
//!   broken connection.
//! * How it ended is written to the audit, unless the handler has done so with what it did: see [`PendingAudit`].
//!
//! A body is read as a whole before the handler begins, unless it is a file of any length: see [`BodyRule`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use sandpiper_db::{StoreError, audit};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::idempotency::{self, REPLAYED};
use sandpiper_http::json::{self, BodyLimit};
use sandpiper_http::request::{RequestId, route};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::id;
use sandpiper_trace as trace;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use crate::auth::Caller;
use crate::pending_audit::PendingAudit;
use crate::state::App;
use crate::store::idempotency::{Claim, IdempotencyKeys, KeptResponse, LEASE, Lookup};
use crate::store::keys::Capability;

/// Responses are documents of this program, far smaller than this.
const MAX_RESPONSE: usize = 4 * 1024 * 1024;
/// Between two tries to store what became of a claim.
const CONCLUDE_AGAIN: Duration = Duration::from_secs(1);

/// Put by a handler into its response: of which sandboxes the credentials in the body are, in their order.
#[derive(Debug, Clone)]
pub struct SessionOf(pub Vec<String>);

/// Work on a response that asks the store or the agent.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// See [`Face::existing`].
pub type Existing =
    for<'a> fn(&'a App, &'a Caller, Option<&'a str>, &'a str) -> Work<'a, Result<Option<Response>, ApiError>>;
/// See [`Face::renew`].
pub type Renew = for<'a> fn(&'a App, &'a Caller, &'a [&'a str], &'a mut Value) -> Work<'a, ()>;

/// How the body of a request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyRule {
    /// As a whole, up to the configured limit.
    Document,
    /// As a whole, up to so many bytes. Few at a time.
    Large(usize),
    /// By the handler, piece by piece. An idempotency key has no use: nobody can tell another stream from the same one before
    /// it is over.
    Stream,
}

/// What the API's faces do differently: how they read bodies, and where credentials stand in responses for repeated requests.
#[derive(Clone, Copy)]
pub struct Face {
    /// How the body of this request is read.
    pub body: fn(&Parts) -> BodyRule,
    /// The response from what the same request had made before it failed or its process died; `None` if it is of no use, and
    /// the request is to be done. With the resource in the path, which a create request has none of, and ids, separated by
    /// commas.
    ///
    /// # Errors
    ///
    /// It cannot be told now.
    pub existing: Existing,
    /// Takes the credentials out of a response that is to be kept.
    pub hide: fn(&mut Value),
    /// Puts new ones of these sandboxes into a kept response.
    pub renew: Renew,
}

/// The middleware.
pub async fn run(State((app, face)): State<(App, Face)>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    match prepare(&app, face, request).await {
        Ok(Prepared::Responded(response)) => response,
        Ok(Prepared::ToDo(job)) => {
            // From here on: requests without a key are no reason to forget those that have one.
            let trace = trace::begin(&job.action);
            let work = async move { perform(&app, face, *job, next).await }.instrument(trace);
            tokio::spawn(work).await.unwrap_or_else(|error| {
                // A panic was reported where it happened; a cancelled task means the process is ending.
                ApiError::internal(format!("mutation ended early: {error}")).into_response()
            })
        }
        Err(error) => error.into_response(),
    }
}

enum Prepared {
    Responded(Response),
    ToDo(Box<Job>),
}

struct Job {
    request: Request,
    caller: Caller,
    claim: Option<Claim>,
    /// What an earlier request with the same key had made: ids, separated by commas.
    made_before: Option<String>,
    action: String,
    resource: Option<String>,
    request_id: String,
    /// For as long as a large body is in memory.
    permit: Option<OwnedSemaphorePermit>,
}

async fn prepare(app: &App, face: Face, request: Request) -> Result<Prepared, ApiError> {
    let action = format!("{} {}", request.method(), route(&request));
    let (mut parts, body) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, app).await?;
    let key = idempotency::key(&parts.headers)?.filter(|_| caller.capability == Capability::Write);
    let (body, permit) = read(app, (face.body)(&parts), &caller, key.is_some(), &parts.headers, body).await?;
    let caller = caller.for_team_of_body(app, body.bytes()).await?;
    let key = key.filter(|_| caller.may_write());
    parts.extensions.insert(caller.clone());

    let target = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let (mut claim, mut made_before) = (None, None);
    if let Some(key) = key {
        // Of two users of a team each has a session and a name of one's own.
        let user = caller.signed_in.as_ref().map(|signed_in| signed_in.id.as_str());
        let fingerprint = idempotency::fingerprint(user, parts.method.as_str(), target, body.bytes());
        match app.store.idempotency.claim(&caller.team.id, &key, &fingerprint, app.clock.now()).await? {
            Lookup::Claimed(new) => claim = Some(new),
            Lookup::Abandoned { claim: new, resource_id } => (claim, made_before) = (Some(new), Some(resource_id)),
            Lookup::InFlight => return Err(ApiError::idempotency_in_progress()),
            Lookup::Reused => return Err(ApiError::idempotency_key_reused()),
            Lookup::Finished(kept) => return Ok(Prepared::Responded(replay(app, face, &caller, kept).await)),
        }
    }
    if let Some(claim) = &claim {
        parts.extensions.insert(claim.clone());
    }
    let is_id = |part: &&str| part.starts_with("sbx") || part.starts_with("ckp") || id::is_valid("vol", part);
    let resource = parts.uri.path().split('/').find(is_id).map(str::to_owned);
    let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    let request = Request::from_parts(parts, body.into());
    Ok(Prepared::ToDo(Box::new(Job { request, caller, claim, made_before, action, resource, request_id, permit })))
}

/// A body, read or not.
enum Read {
    Whole(Bytes),
    Stream(Body),
}

impl Read {
    fn bytes(&self) -> &[u8] {
        match self {
            Read::Whole(bytes) => bytes,
            Read::Stream(_) => &[],
        }
    }
}

impl From<Read> for Body {
    fn from(read: Read) -> Self {
        match read {
            Read::Whole(bytes) => Body::from(bytes),
            Read::Stream(body) => body,
        }
    }
}

/// Reads a body by its rule, with a permit where it may be large.
async fn read(
    app: &App,
    rule: BodyRule,
    caller: &Caller,
    has_key: bool,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Read, Option<OwnedSemaphorePermit>), ApiError> {
    let limit = match rule {
        BodyRule::Document => BodyLimit::from_ref(app),
        // The handler refuses it: there is no need to read it.
        _ if !caller.may_write() => return Ok((Read::Whole(Bytes::new()), None)),
        BodyRule::Stream if has_key => {
            let reason = "is not taken with a stream; sending the same stream again has the same effect";
            return Err(ApiError::invalid_field("Idempotency-Key", reason));
        }
        BodyRule::Stream => return Ok((Read::Stream(body), None)),
        BodyRule::Large(limit) => BodyLimit(limit),
    };
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit.0) {
        return Err(ApiError::too_large(limit.0));
    }
    let is_small = length.is_some_and(|length| length <= app.settings.request_body_limit);
    let permit = match rule {
        BodyRule::Large(_) if !is_small => {
            let permit = Arc::clone(&app.large_bodies).try_acquire_owned();
            let message =
                "Too many large documents are being sent; send this one again, or as application/octet-stream";
            let busy = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "capacity_unavailable", message).retry_after(2);
            Some(permit.map_err(|_| busy)?)
        }
        _ => None,
    };
    Ok((Read::Whole(json::read(Request::new(body), limit).await?), permit))
}

/// Does the work, keeps the response where there is a claim, and writes the audit.
async fn perform(app: &App, face: Face, job: Job, next: Next) -> Response {
    let Job { mut request, caller, claim, made_before, action, resource, request_id, permit: _permit } = job;
    if let Some(resource) = &resource {
        trace::about(resource);
    }
    let pending_audit = PendingAudit::new(audit::Entry {
        at: app.clock.now(),
        team_id: caller.team.id.to_string(),
        key_id: caller.key_id.clone(),
        user_id: caller.signed_in.as_ref().map(|signed_in| signed_in.id.to_string()),
        request_id,
        action,
        resource: None,
        status: 0,
    });
    request.extensions_mut().insert(pending_audit.clone());
    let existing = match &made_before {
        Some(ids) => (face.existing)(app, &caller, resource.as_deref(), ids).await,
        None => Ok(None),
    };
    let response = match existing {
        Ok(Some(response)) => response,
        Err(error) => error.into_response(),
        // Caught here, so that the claim is released and the audit written.
        Ok(None) => match tokio::spawn(next.run(request).instrument(trace::step("handler"))).await {
            Ok(response) => response,
            Err(error) => ApiError::internal(format!("panic in a handler: {error}")).into_response(),
        },
    };
    let acted = response.extensions().get::<Acted>().map(|acted| acted.0.clone());
    let resources = acted.map_or_else(|| vec![resource], |ids| ids.into_iter().map(Some).collect());
    let entry = pending_audit.take(app.clock.now(), None, response.status());
    let with = |resource| entry.clone().map(|entry| audit::Entry { resource, ..entry });
    let entries: Vec<_> = resources.into_iter().filter_map(with).collect();
    let response = match claim {
        Some(claim) => settle(app, face, &claim, response).instrument(trace::step("keep the response")).await,
        None => response,
    };
    app.store.audit.keep(entries).instrument(trace::step("audit")).await;
    response
}

/// Keeps the response under the claim, or gives the key free.
async fn settle(app: &App, face: Face, claim: &Claim, response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, MAX_RESPONSE).await else {
        return ApiError::internal("response over its limit").into_response();
    };
    let kept = worth_keeping(parts.status, parts.extensions.get::<ApiError>()).then(|| KeptResponse {
        status: parts.status.as_u16(),
        body: without_credentials(face, &bytes),
        session_of: parts.extensions.get::<SessionOf>().map(|sessions| sessions.0.join(",")),
    });
    if let Err(error) = conclude(&app.store.idempotency, claim, kept.as_ref()).await {
        tracing::warn!(error = chain(&error), "response for an idempotency key not stored yet");
        tokio::spawn(conclude_later(app.store.idempotency.clone(), claim.clone(), kept).in_current_span());
    }
    Response::from_parts(parts, Body::from(bytes))
}

/// Keeps a response under the claim; without one, gives the key free.
async fn conclude(keys: &IdempotencyKeys, claim: &Claim, kept: Option<&KeptResponse>) -> Result<(), StoreError> {
    match kept {
        Some(kept) => keys.finish(claim, kept).await,
        None => keys.release(claim).await,
    }
}

/// As [`conclude`], once the database is there again. Until then a repetition is told to wait.
async fn conclude_later(keys: IdempotencyKeys, claim: Claim, kept: Option<KeptResponse>) {
    let give_up_at = Instant::now() + LEASE;
    while Instant::now() < give_up_at {
        sleep(CONCLUDE_AGAIN).await;
        if conclude(&keys, &claim, kept.as_ref()).await.is_ok() {
            return;
        }
    }
    // The lease is over, and what was made is found by the ids in the claim.
    tracing::error!("response for an idempotency key not stored: the database was away for too long");
}

/// Successes are kept. Errors are not, so the same request may be tried again.
fn worth_keeping(status: StatusCode, error: Option<&ApiError>) -> bool {
    error.is_none() && status.is_success()
}

fn without_credentials(face: Face, body: &[u8]) -> Option<String> {
    let mut value: Value = serde_json::from_slice(body).ok()?;
    (face.hide)(&mut value);
    Some(value.to_string())
}

/// The kept response, with new credentials where it had some.
async fn replay(app: &App, face: Face, caller: &Caller, kept: KeptResponse) -> Response {
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let mut value = kept.body.and_then(|body| serde_json::from_str::<Value>(&body).ok());
    if let (Some(ids), Some(value)) = (kept.session_of, value.as_mut()) {
        let ids: Vec<&str> = ids.split(',').collect();
        (face.renew)(app, caller, &ids, value).await;
    }
    let mut response = Response::new(Body::empty());
    if let Some(value) = value {
        *response.body_mut() = Body::from(value.to_string());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    *response.status_mut() = status;
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
