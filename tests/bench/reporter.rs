//! Reports of payments to the API, as whoever carries them out sends them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::api::Api;
use crate::schedule::{Answer, Request, Target};

/// What answers a report.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Accepted {
    /// Of the webhook; none where the merchant has no URL.
    pub(crate) delivery_id: Option<String>,
}

/// Who reports.
pub(crate) struct Reporter {
    target: Target,
    merchants: Arc<[String]>,
    /// Reported so far.
    payments: Arc<AtomicU64>,
}

impl Reporter {
    pub(crate) fn new(api: &Api, merchants: Vec<String>) -> Self {
        let target = Target { address: api.address, key: api.operator.clone() };
        Self { target, merchants: merchants.into(), payments: Arc::default() }
    }

    /// Reports so many payments a second for so long, of these merchants in turn, however long the answers take.
    pub(crate) async fn at_rate(
        &self,
        merchants: Range<usize>,
        rate: u32,
        time: Duration,
    ) -> anyhow::Result<Vec<Answer<Accepted>>> {
        self.target.at_rate(rate, time, self.payments_of(merchants)).await
    }

    /// Reports so many payments of these merchants in turn, each as soon as a connection is free.
    pub(crate) async fn at_once(&self, merchants: Range<usize>, count: usize) -> anyhow::Result<Vec<Answer<Accepted>>> {
        self.target.at_once(count, self.payments_of(merchants)).await
    }

    /// Reports of new payments.
    fn payments_of(&self, merchants: Range<usize>) -> impl Fn(usize) -> Request + Clone + Send + 'static {
        let (all, payments) = (self.merchants.clone(), self.payments.clone());
        move |number| {
            let payment = json!({
                "merchantId": all[merchants.start + number % merchants.len()], "realm": "live", "status": "COMPLETED",
                "amount": "1500.00", "actualAmount": "1500.00", "currencyCode": "KES", "countryCode": "KE",
                "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY", "operator": "example-wallet-ke",
                "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:01Z", "metadata": {"order": "42"},
            });
            let path = format!("/operator/v1/payments/bench_{}", payments.fetch_add(1, Ordering::Relaxed));
            Request { method: "PUT", path, body: payment.to_string() }
        }
    }
}
