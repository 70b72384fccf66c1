//! Requests that are made until they are answered, as a careful client makes them: again with the same `Idempotency-Key`
//! while there is no answer, or one that says to try again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use sandpiper_protocol::id;
use serde_json::Value;

use crate::ledger::Ledger;

/// Something has gone wrong that no repetition mends: hosts here start within a minute.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);
/// Between two requests.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);
/// For one answer: longer than the API takes for anything.
const ANSWER: Duration = Duration::from_secs(180);
/// Of an answer that is a JSON value a line: here it is an array of them.
const LINES: &str = "application/jsonl";

/// Who asks, with one key.
#[derive(Clone)]
pub(crate) struct Caller {
    http: reqwest::Client,
    url: String,
    key: String,
    pub(crate) ledger: Arc<Ledger>,
}

impl Caller {
    pub(crate) fn new(url: &str, key: &str, ledger: Arc<Ledger>) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(ANSWER).build()?;
        Ok(Self { http, url: url.to_owned(), key: key.to_owned(), ledger })
    }

    /// The same with another key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// What answers a request that succeeds. `what` it does is for the ledger.
    ///
    /// # Errors
    /// Where it is refused, or nobody answers for long.
    pub(crate) async fn ask(
        &self,
        what: &'static str,
        method: Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        self.ask_for(what, method, path, body).await?.with_context(|| format!("{what}: {path} is gone"))
    }

    /// Sees to it that something is gone.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn delete(&self, what: &'static str, path: &str) -> anyhow::Result<()> {
        // An answer that was lost may have been that it was there.
        self.ask_for(what, Method::DELETE, path, &Value::Null).await.map(drop)
    }

    /// The answer; nothing where what is asked for does not exist.
    async fn ask_for(
        &self,
        what: &'static str,
        method: Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Option<Value>> {
        let (mut key, begin, mut requests) = (id::generate("drl"), Instant::now(), 0);
        loop {
            requests += 1;
            let why = match self.once(&method, path, body, &key).await {
                Ok((status, answer)) if status.is_success() => {
                    self.ledger.acknowledged(what, requests);
                    return Ok(Some(answer));
                }
                Ok((StatusCode::NOT_FOUND, _)) => return Ok(None),
                Ok((status, answer)) => {
                    let is_for_now = status.is_server_error()
                        || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
                    if !is_for_now {
                        bail!("{what}: {method} {path} is refused: {status} {answer}");
                    }
                    // Such an answer is kept: the same key would get it again.
                    if status == StatusCode::CONFLICT && answer["error"] != "idempotency_in_progress" {
                        key = id::generate("drl");
                    }
                    format!("{status} {answer}")
                }
                Err(error) => format!("{error:#}"),
            };
            ensure!(begin.elapsed() < TIMEOUT, "{what}: {method} {path} is not answered; at last: {why}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn once(&self, method: &Method, path: &str, body: &Value, key: &str) -> anyhow::Result<(StatusCode, Value)> {
        let url = format!("{}{path}", self.url);
        let mut request = self.http.request(method.clone(), url).bearer_auth(&self.key).header("Idempotency-Key", key);
        if !body.is_null() {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let has_lines = answer.headers().get(CONTENT_TYPE).is_some_and(|value| value == LINES);
        let body = answer.bytes().await?;
        let parsed = if has_lines {
            serde_json::Deserializer::from_slice(&body).into_iter::<Value>().collect::<Result<_, _>>()
        } else {
            serde_json::from_slice(&body)
        };
        Ok((status, parsed.unwrap_or_default()))
    }
}
