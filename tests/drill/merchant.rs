//! Payments, and what arrives of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use reqwest::Method;
use serde_json::json;
use support::Receiver;

use crate::caller::Caller;

/// Between two payments.
const EVERY: Duration = Duration::from_millis(500);
/// For a webhook: a dead process's attempt is taken up by another only after a while.
const ARRIVAL: Duration = Duration::from_secs(240);

/// A merchant, as an operator sees it, and its receiver.
pub(crate) struct Merchant {
    operator: Caller,
    id: String,
    receiver: Receiver,
    /// What was acknowledged: the delivery of each payment.
    deliveries: BTreeMap<String, String>,
}

impl Merchant {
    pub(crate) async fn new(operator: Caller, receiver: Receiver) -> anyhow::Result<Self> {
        let made = operator.ask("merchant", Method::POST, "/operator/v1/merchants", &json!({"name": "drill"})).await?;
        let id = made["id"].as_str().context("a merchant without an id")?.to_owned();
        let path = format!("/operator/v1/merchants/{id}/keys");
        let key = operator.ask("key", Method::POST, &path, &json!({"realm": "live", "kind": "secret"})).await?;
        let secret = operator.with_key(key["key"].as_str().context("a key without its text")?);
        let config = json!({"realm": "live", "url": receiver.url(0)});
        secret.ask("webhook URL", Method::PUT, "/merchant/api/v1/webhookConfig", &config).await?;
        Ok(Self { operator, id, receiver, deliveries: BTreeMap::new() })
    }

    /// Reports payments until `end`.
    pub(crate) async fn work(mut self, end: Instant) -> Self {
        for number in 0.. {
            if Instant::now() >= end {
                break;
            }
            if let Err(error) = self.report(number).await {
                self.operator.ledger.find(format!("payment {number}: {error:#}"));
            }
            tokio::time::sleep(EVERY).await;
        }
        self
    }

    async fn report(&mut self, number: usize) -> anyhow::Result<()> {
        let id = format!("drill_{number}");
        let payment = json!({
            "merchantId": self.id, "realm": "live", "status": "COMPLETED",
            "amount": "1500.00", "actualAmount": "1500.00", "currencyCode": "KES", "countryCode": "KE",
            "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY", "operator": "example-wallet-ke",
            "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:01Z",
        });
        let path = format!("/operator/v1/payments/{id}");
        let answer = self.operator.ask("payment", Method::PUT, &path, &payment).await?;
        let delivery = answer["deliveryId"].as_str().with_context(|| format!("no webhook: {answer}"))?;
        self.deliveries.insert(id, delivery.to_owned());
        Ok(())
    }

    /// Says what has not arrived of what was acknowledged, and what arrived besides.
    pub(crate) async fn audit(self) {
        let begin = Instant::now();
        let missing = loop {
            let arrived = self.receiver.deliveries();
            let missing = self.deliveries.iter().find(|(_, delivery)| !arrived.contains(*delivery));
            match missing {
                Some(_) if begin.elapsed() < ARRIVAL => tokio::time::sleep(EVERY).await,
                missing => break missing,
            }
        };
        let ledger = &self.operator.ledger;
        if let Some((payment, delivery)) = missing {
            ledger.find(format!("lost: the webhook {delivery} of {payment}, which was acknowledged, did not arrive"));
        }
        let known: Vec<&String> = self.deliveries.values().collect();
        for delivery in self.receiver.deliveries().iter().filter(|delivery| !known.contains(delivery)) {
            ledger.find(format!("doubled: the webhook {delivery} arrived, and no payment has it"));
        }
    }
}
