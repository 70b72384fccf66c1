//! Reports of payments to the API, as whoever carries them out sends them.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::json;

use crate::api::Api;
use crate::connection::Connection;

/// Connections on which payments are reported.
const CONNECTIONS: usize = 64;

/// A payment that was reported.
pub(crate) struct Event {
    /// When it was to be reported, whatever held it up.
    pub(crate) due: Instant,
    pub(crate) accepted: Instant,
    /// Of its webhook; none where the merchant has no URL.
    pub(crate) delivery: Option<String>,
}

/// Who reports.
#[derive(Clone)]
pub(crate) struct Reporter(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    operator: String,
    merchants: Vec<String>,
    payments: AtomicU64,
}

/// Of an answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Accepted {
    delivery_id: Option<String>,
}

impl Reporter {
    pub(crate) fn new(api: &Api, merchants: Vec<String>) -> Self {
        let (address, operator) = (api.address, api.operator.clone());
        Self(Arc::new(Inner { address, operator, merchants, payments: AtomicU64::new(0) }))
    }

    /// Reports so many payments a second for so long, of these merchants in turn, however long the answers take.
    pub(crate) async fn at_rate(
        &self,
        merchants: Range<usize>,
        rate: u32,
        time: Duration,
    ) -> anyhow::Result<Vec<Event>> {
        let begin = Instant::now();
        let count = usize::try_from(u128::from(rate) * time.as_millis() / 1000)?;
        let due =
            move |number: usize| Some(begin + time.mul_f64(number as f64 / count as f64)).filter(|_| number < count);
        self.report(merchants, due).await
    }

    /// Reports so many payments of these merchants in turn, each as soon as a connection is free.
    pub(crate) async fn at_once(&self, merchants: Range<usize>, count: usize) -> anyhow::Result<Vec<Event>> {
        self.report(merchants, move |number| Some(Instant::now()).filter(|_| number < count)).await
    }

    /// Reports payments when they are due, until none is any more.
    async fn report(
        &self,
        merchants: Range<usize>,
        due: impl Fn(usize) -> Option<Instant> + Clone + Send + 'static,
    ) -> anyhow::Result<Vec<Event>> {
        let connections = (0..CONNECTIONS).map(|first| {
            let (reporter, due, merchants) = (self.clone(), due.clone(), merchants.clone());
            async move {
                let reports = async move {
                    let mut connection = Connection::open(reporter.0.address).await?;
                    let mut events = Vec::new();
                    let mut number = first;
                    while let Some(due) = due(number) {
                        tokio::time::sleep_until(due.into()).await;
                        let merchant = &reporter.0.merchants[merchants.start + number % merchants.len()];
                        events.push(reporter.one(&mut connection, merchant, due).await?);
                        number += CONNECTIONS;
                    }
                    anyhow::Ok(events)
                };
                tokio::spawn(reports).await?
            }
        });
        Ok(try_join_all(connections).await?.into_iter().flatten().collect())
    }

    async fn one(&self, connection: &mut Connection, merchant: &str, due: Instant) -> anyhow::Result<Event> {
        let path = format!("/operator/v1/payments/bench_{}", self.0.payments.fetch_add(1, Ordering::Relaxed));
        let payment = json!({
            "merchantId": merchant, "realm": "live", "status": "COMPLETED", "amount": "1500.00", "actualAmount": "1500.00",
            "currencyCode": "KES", "countryCode": "KE", "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY",
            "operator": "example-wallet-ke", "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:01Z",
            "metadata": {"order": "42"},
        });
        let payment = payment.to_string();
        let response = connection.ask("PUT", &path, &self.0.operator, &payment).await?;
        let accepted = Instant::now();
        let Accepted { delivery_id } = serde_json::from_slice(response)?;
        Ok(Event { due, accepted, delivery: delivery_id })
    }
}
