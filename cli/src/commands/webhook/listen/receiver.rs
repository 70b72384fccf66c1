//! What happens to one request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use sandpiper_webhook::{DEFAULT_WINDOW, IDEMPOTENCY_KEY_HEADER, SIGNATURE_HEADER, SigningKey, verify};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::store::{FileName, Kept, Store};
use crate::commands::webhook::now;
use crate::output::Output;

/// Largest body that is read.
const BODY_BYTES: usize = 1024 * 1024;
/// For the whole body; a sender waits no longer for the response.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Verifies and keeps deliveries, and prints a line for each.
pub(super) struct Receiver {
    key: SigningKey,
    store: Store,
    output: Output,
}

/// Why a request is not a delivery that could be kept.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    reason: String,
}

impl Refusal {
    fn new(status: StatusCode, reason: impl ToString) -> Self {
        Self { status, reason: reason.to_string() }
    }
}

/// A genuine delivery.
struct Delivery {
    key: String,
    file: FileName,
    body: Bytes,
}

/// What a line may say of a payment. A body that says something else is kept all the same.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Payment {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
}

/// What a line may say of an event of a team, likewise.
#[derive(Deserialize, Serialize)]
struct Event {
    sequence: u64,
    #[serde(rename = "type")]
    event_type: String,
    resource: Resource,
}

#[derive(Deserialize, Serialize)]
struct Resource {
    kind: String,
    id: String,
}

/// What a delivery tells of.
enum Told {
    Event(Event),
    Payment(Payment),
}

impl Told {
    fn of(body: &[u8]) -> Self {
        let event = serde_json::from_slice(body).map(Told::Event);
        event.unwrap_or_else(|_| Told::Payment(serde_json::from_slice(body).unwrap_or_default()))
    }

    /// What it is of, and what became of that.
    fn words(self) -> [Option<String>; 2] {
        match self {
            Told::Event(event) => [Some(event.resource.id), Some(event.event_type)],
            Told::Payment(payment) => [payment.id, payment.status],
        }
    }
}

impl Receiver {
    pub(super) fn new(key: SigningKey, store: Store, output: Output) -> Self {
        Self { key, store, output }
    }

    /// The response to a request: 200 only when its delivery is on the disk.
    pub(super) async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let read = self.read(request).await;
        // A sender that goes away takes the response with it, not the delivery: this runs to its end.
        let done = tokio::task::spawn_blocking(move || {
            read.and_then(|delivery| self.keep(&delivery)).inspect_err(|refusal| self.print_refusal(refusal))
        });
        Ok(match done.await {
            Ok(Ok(kept)) => response(StatusCode::OK, kept.word()),
            Ok(Err(refusal)) => response(refusal.status, &refusal.reason),
            Err(panicked) => response(StatusCode::INTERNAL_SERVER_ERROR, &panicked.to_string()),
        })
    }

    async fn read(&self, request: Request<Incoming>) -> Result<Delivery, Refusal> {
        if request.method() != Method::POST {
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Webhooks are sent by POST"));
        }
        let (head, body) = request.into_parts();
        let body = read_body(body).await?;
        let signatures = head.headers.get_all(SIGNATURE_HEADER);
        verify(&self.key, signatures, &body, now(), DEFAULT_WINDOW)
            .map_err(|reason| Refusal::new(StatusCode::UNAUTHORIZED, reason))?;
        // Not signed, but nobody who could not sign comes so far.
        let key = idempotency_key(&head.headers)?;
        let file = FileName::of(key.as_bytes()).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error))?;
        Ok(Delivery { key: key.to_owned(), file, body })
    }

    /// Puts the delivery on the disk, and prints its line. Blocks.
    fn keep(&self, delivery: &Delivery) -> Result<Kept, Refusal> {
        let kept = self.store.keep(&delivery.file, &delivery.body).map_err(|error| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("The delivery cannot be kept: {error}"))
        })?;
        let told = Told::of(&delivery.body);
        if self.output.is_json() {
            let mut line = json!({"outcome": kept.word(), "idempotency_key": delivery.key});
            match &told {
                Told::Event(event) => line["event"] = json!(event),
                Told::Payment(payment) => line["payment"] = json!(payment),
            }
            self.output.value(&line);
        } else {
            let say = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned()).escape_debug().to_string();
            let [id, status] = told.words().map(say);
            self.output.line(&format!("{:9}  {}  {id}  {status}", kept.word(), delivery.key));
        }
        Ok(kept)
    }

    fn print_refusal(&self, Refusal { status, reason }: &Refusal) {
        if self.output.is_json() {
            self.output.value(&json!({"outcome": "refused", "status": status.as_u16(), "reason": reason}));
        }
        self.output.line(&format!("refused    {}  {reason}", status.as_u16()));
    }
}

impl Kept {
    fn word(self) -> &'static str {
        match self {
            Kept::New => "stored",
            Kept::Duplicate => "duplicate",
        }
    }
}

async fn read_body(body: Incoming) -> Result<Bytes, Refusal> {
    let read = tokio::time::timeout(BODY_TIME, Limited::new(body, BODY_BYTES).collect());
    match read.await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("The body is larger than {BODY_BYTES} bytes")))
        }
        Ok(Err(error)) => Err(Refusal::new(StatusCode::BAD_REQUEST, format!("The body did not come whole: {error}"))),
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "The body did not come in time")),
    }
}

/// The one value of the header.
fn idempotency_key(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY_HEADER).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        let reason = "There must be exactly one Idempotency-Key header";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
    };
    value.to_str().map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "The Idempotency-Key is not ASCII"))
}

fn response(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    response
}
