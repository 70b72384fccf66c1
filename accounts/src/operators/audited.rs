//! What is common to every request of an operator that changes something: the caller is established before the body is
//! read, the work goes on when the client hangs up, and how it ended is written to the audit.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sandpiper_db::{StoreError, audit};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::request::{RequestId, route};
use tracing::Instrument;

use super::{Operator, Operators};

/// Put by a handler into its response: the audit's entry was written together with what it tells of.
#[derive(Debug, Clone)]
pub struct Written;

/// The middleware, with the errors `E` of whose routes these are. Handlers find the entry as it will be, but for its status, among the
/// request's extensions.
pub async fn run<E>(State(operators): State<Operators>, request: Request, next: Next) -> Response
where
    E: From<ApiError> + From<StoreError> + IntoResponse,
{
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let action = format!("{} {}", request.method(), route(&request));
    let (mut parts, body) = request.into_parts();
    let operator = match Operator::establish::<E>(&mut parts, &operators).await {
        Ok(operator) => operator,
        Err(error) => return error.into_response(),
    };
    let entry = audit::Entry {
        at: operators.clock.now(),
        team_id: audit::OPERATOR.to_owned(),
        key_id: operator.key_id,
        user_id: None,
        request_id: parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
        action,
        resource: parts.uri.path().strip_prefix("/operator/v1/").map(str::to_owned),
        status: 0,
    };
    parts.extensions.insert(entry.clone());
    let request = Request::from_parts(parts, body);
    let work = async move {
        // On a task of its own once more, so that a panic is audited too.
        let response = match tokio::spawn(next.run(request).in_current_span()).await {
            Ok(response) => response,
            Err(error) => E::from(ApiError::internal(format!("panic in a handler: {error}"))).into_response(),
        };
        operators.audit.keep(entries(entry, &response)).await;
        response
    };
    tokio::spawn(work.in_current_span()).await.unwrap_or_else(|error| {
        // A panic was reported where it happened; a cancelled task means the process is ending.
        E::from(ApiError::internal(format!("operator's request ended early: {error}"))).into_response()
    })
}

/// What is still to be written: one entry for each thing that was acted on.
fn entries(entry: audit::Entry, response: &Response) -> Vec<audit::Entry> {
    if response.extensions().get::<Written>().is_some() {
        return Vec::new();
    }
    let entry = audit::Entry { status: response.status().as_u16(), ..entry };
    match response.extensions().get::<Acted>() {
        Some(Acted(made)) => {
            made.iter().map(|id| audit::Entry { resource: Some(id.clone()), ..entry.clone() }).collect()
        }
        None => vec![entry],
    }
}
