//! One attempt on the wire: from the URL to a response or a failure, within one deadline.
//!
//! ```text
//! resolve ─ vet ─ connect ─ TLS ─ request ─ head of the response ─ body, to a cap
//! └───────────────────── 30 seconds ──────────────────────────┘└─ 2 seconds ─┘
//! ```
//!
//! The head decides. What comes after it is read so that the connection can be used again; it changes nothing, also when it
//! never ends. An attempt that is acknowledged is over with the head, and the body is read apart. Otherwise the beginning of
//! the body is kept for people, and the attempt waits for it.
//!
//! An attempt is one request at most, so each has a signature of its own and counts. Redirects are responses like others:
//! nobody asks where they lead. No proxy of the environment is used, because a proxy would resolve names itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use sandpiper_http::clock::Clock;
use sandpiper_webhook::{IDEMPOTENCY_KEY_HEADER, SIGNATURE_HEADER};
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{Connection, Connector, NoResponse};
use crate::endpoint_url::EndpointUrl;
use crate::outcome::{Failure, FailureClass, SNIPPET, Verdict, WebhookResponse, snippet};
use crate::pool::{Pool, PoolKey};
use crate::retry_after;
use crate::store::Endpoint;
use crate::store::delivery::DeliveryId;

/// Of an attempt, to the head of its response.
pub const ATTEMPT_LIMIT: Duration = Duration::from_secs(30);
/// Of a response's body, which is read for the sake of the connection. A longer one costs the connection.
const BODY_LIMIT: usize = 64 * 1024;
/// How long a body is read after its head.
const BODY_TIME: Duration = Duration::from_secs(2);
const AGENT: HeaderValue = HeaderValue::from_static("Sandpiper-Webhooks/1");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What is sent.
#[derive(Debug)]
pub struct Webhook<'a, E> {
    pub endpoint: &'a E,
    pub url: &'a EndpointUrl,
    pub delivery: &'a DeliveryId,
    /// The value of `X-Webhook-Signature`.
    pub signature: &'a str,
    pub body: Bytes,
}

/// Sends webhooks.
#[derive(Debug)]
pub struct Sender<E: Endpoint> {
    connector: Connector,
    limit: Duration,
    pool: Arc<Pool<E>>,
}

impl<E: Endpoint> Sender<E> {
    /// Each attempt takes `limit` at most.
    pub fn new(connector: Connector, limit: Duration) -> Self {
        Self { connector, limit, pool: Arc::default() }
    }

    /// Makes one attempt; the clock is for dates in `Retry-After`.
    pub async fn send(&self, webhook: &Webhook<'_, E>, clock: &Clock) -> Result<WebhookResponse, Failure> {
        let deadline = Instant::now() + self.limit;
        let exchange = timeout_at(deadline, self.exchange(webhook, deadline)).await;
        let (connection, response) = exchange.unwrap_or_else(|_| Err(self.too_late()))?;
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|value| retry_after::parse(value, clock.now()));

        let (status, key) = (head.status.as_u16(), (webhook.endpoint.clone(), webhook.url.authority()));
        let snippet = match Verdict::of_status(status) {
            Verdict::Acknowledged => {
                self.read_apart(key, connection, body);
                String::new()
            }
            _ => read(&self.pool, key, connection, body).await,
        };
        Ok(WebhookResponse { status, retry_after, snippet })
    }

    /// Has the body of an acknowledgement read for the sake of the connection, unless too many others are being read.
    fn read_apart(&self, key: PoolKey<E>, connection: Connection, body: Incoming) {
        if body.is_end_stream() {
            self.pool.put(key, connection);
        } else if let Some(reading) = self.pool.begin_reading(key.clone()) {
            let pool = self.pool.clone();
            tokio::spawn(async move {
                read(&pool, key, connection, body).await;
                drop(reading);
            });
        }
    }

    /// Closes connections that have waited too long.
    pub fn prune(&self) {
        self.pool.prune();
    }

    /// Sends the request on a connection that waits, or on a new one.
    ///
    /// A receiver may close a waiting connection at the moment at which it is used again. Where nothing of the request was
    /// written before, a new connection is opened for it. Otherwise it may have arrived, and the attempt has failed.
    async fn exchange(
        &self,
        webhook: &Webhook<'_, E>,
        deadline: Instant,
    ) -> Result<(Connection, Response<Incoming>), Failure> {
        let key = (webhook.endpoint.clone(), webhook.url.authority());
        if let Some(mut connection) = self.pool.take(&key) {
            match connection.send(request(webhook)?).await {
                Ok(response) => return Ok((connection, response)),
                Err(NoResponse { failure, unsent: true }) => {
                    tracing::debug!(delivery = %webhook.delivery, %failure, "a waiting connection was closed");
                }
                Err(NoResponse { failure, .. }) => return Err(failure),
            }
        }
        let mut connection = self.connector.open(&key.1, deadline).await?;
        let response = connection.send(request(webhook)?).await.map_err(|none| none.failure)?;
        Ok((connection, response))
    }

    fn too_late(&self) -> Failure {
        Failure::new(FailureClass::Timeout, format!("no response within {} s", self.limit.as_secs_f64()))
    }
}

fn request<E>(webhook: &Webhook<'_, E>) -> Result<Request<Full<Bytes>>, Failure> {
    Request::builder()
        .method(Method::POST)
        .uri(webhook.url.path_and_query().as_str())
        .header(HOST, webhook.url.host_header())
        .header(CONTENT_TYPE, JSON)
        .header(USER_AGENT, AGENT)
        .header(IDEMPOTENCY_KEY_HEADER, webhook.delivery.as_str())
        .header(SIGNATURE_HEADER, webhook.signature)
        .body(Full::new(webhook.body.clone()))
        // Every part has been through a parser or was made here.
        .map_err(|error| Failure::new(FailureClass::Malformed, error))
}

/// The beginning of a body, which is read for a while. If it ended, the connection is kept.
async fn read<E: Endpoint>(pool: &Pool<E>, key: PoolKey<E>, connection: Connection, body: Incoming) -> String {
    let mut kept = Vec::new();
    if let Ok(Ok(())) = timeout(BODY_TIME, drain(body, &mut kept)).await {
        pool.put(key, connection);
    }
    snippet(&kept)
}

/// Reads a body to its end, or fails. What came first is in `kept` in either case.
async fn drain(mut body: Incoming, kept: &mut Vec<u8>) -> Result<(), ()> {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(drop)?.into_data() else { continue };
        kept.extend(data.iter().take(SNIPPET - kept.len()));
        length += data.len();
        if length > BODY_LIMIT {
            return Err(());
        }
    }
    Ok(())
}
