//! Requests that are sent when they are due, however long the answers to others take.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;

use crate::connection::Connection;

/// Connections on which requests are sent.
const CONNECTIONS: usize = 64;

/// Something to send.
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// JSON.
    pub(crate) body: String,
}

/// What came of it.
pub(crate) struct Answer<T> {
    /// When the request was to be sent, whatever held it up.
    pub(crate) due: Instant,
    pub(crate) received: Instant,
    pub(crate) body: T,
}

/// Whom to send requests, and with which key.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
}

impl Target {
    /// Sends so many requests a second for so long.
    pub(crate) async fn at_rate<T: DeserializeOwned + Send + 'static>(
        &self,
        rate: u32,
        time: Duration,
        request: impl Fn(usize) -> Request + Clone + Send + 'static,
    ) -> anyhow::Result<Vec<Answer<T>>> {
        let begin = Instant::now();
        let count = usize::try_from(u128::from(rate) * time.as_millis() / 1000)?;
        let due = move |number: usize| begin + time.mul_f64(number as f64 / count as f64);
        self.send(count, due, request).await
    }

    /// Sends so many requests, each as soon as a connection is free.
    pub(crate) async fn at_once<T: DeserializeOwned + Send + 'static>(
        &self,
        count: usize,
        request: impl Fn(usize) -> Request + Clone + Send + 'static,
    ) -> anyhow::Result<Vec<Answer<T>>> {
        self.send(count, |_| Instant::now(), request).await
    }

    /// Sends so many requests, each of which must succeed, when they are due.
    async fn send<T: DeserializeOwned + Send + 'static>(
        &self,
        count: usize,
        due: impl Fn(usize) -> Instant + Clone + Send + 'static,
        request: impl Fn(usize) -> Request + Clone + Send + 'static,
    ) -> anyhow::Result<Vec<Answer<T>>> {
        let connections = (0..CONNECTIONS).map(|first| {
            let (target, due, request) = (self.clone(), due.clone(), request.clone());
            let answers = async move {
                let mut connection = Connection::open(target.address).await?;
                let mut answers = Vec::new();
                for number in (first..count).step_by(CONNECTIONS) {
                    let due = due(number);
                    tokio::time::sleep_until(due.into()).await;
                    let Request { method, path, body } = request(number);
                    let answer = connection.ask(method, &path, &target.key, &body).await?;
                    let received = Instant::now();
                    answers.push(Answer { due, received, body: serde_json::from_slice(answer)? });
                }
                anyhow::Ok(answers)
            };
            async move { tokio::spawn(answers).await? }
        });
        Ok(try_join_all(connections).await?.into_iter().flatten().collect())
    }
}
