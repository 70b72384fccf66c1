//! Webhooks of a team, and what was sent to them. Responses are as the API gives them.

use reqwest::Method;
use serde_json::Value;

use super::{Client, ClientError};

/// Most deliveries of one page.
const MOST: usize = 100;

impl Client {
    /// Makes a webhook of this client's team; the response has the `secret`. `order`: `url`, `name`, `types`.
    pub async fn create_webhook(&self, order: &Value) -> Result<Value, ClientError> {
        self.call(Method::POST, "/webhooks", Some(order.clone())).await
    }

    /// The webhooks of this client's team, oldest first.
    pub async fn webhooks(&self) -> Result<Vec<Value>, ClientError> {
        let mut list = self.call(Method::GET, "/webhooks", None).await?;
        self.parse("/webhooks", list.get_mut("webhooks").map(Value::take).unwrap_or_default())
    }

    /// One webhook, by its id.
    pub async fn webhook(&self, id: &str) -> Result<Value, ClientError> {
        self.call(Method::GET, &format!("/webhooks/{id}"), None).await
    }

    /// Changes what `change` names: `url`, `name`, `types`, `enabled`.
    pub async fn change_webhook(&self, id: &str, change: &Value) -> Result<Value, ClientError> {
        self.call(Method::PATCH, &format!("/webhooks/{id}"), Some(change.clone())).await
    }

    /// Gives a webhook another secret; the response has it.
    pub async fn rotate_webhook_secret(&self, id: &str) -> Result<Value, ClientError> {
        self.call(Method::POST, &format!("/webhooks/{id}/secret"), None).await
    }

    /// Deletes a webhook.
    pub async fn delete_webhook(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/webhooks/{id}"), None).await.map(drop)
    }

    /// Sends a test; the response is the delivery.
    pub async fn test_webhook(&self, id: &str) -> Result<Value, ClientError> {
        self.call(Method::POST, &format!("/webhooks/{id}/test"), None).await
    }

    /// The newest deliveries to a webhook, of this state if one is named, at most `limit`.
    pub async fn webhook_deliveries(
        &self,
        id: &str,
        state: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Value>, ClientError> {
        let path = format!("/webhooks/{id}/deliveries");
        let state = state.map(|state| format!("&state={state}")).unwrap_or_default();
        let (mut all, mut token): (Vec<Value>, _) = (Vec::new(), String::new());
        while all.len() < limit {
            let wanted = (limit - all.len()).min(MOST);
            let mut page = self.call(Method::GET, &format!("{path}?limit={wanted}{state}{token}"), None).await?;
            let deliveries = page.get_mut("deliveries").map(Value::take).unwrap_or_default();
            all.extend(self.parse::<Vec<Value>>(&path, deliveries)?);
            match page["next_token"].as_str() {
                Some(next) => token = format!("&next_token={next}"),
                None => break,
            }
        }
        Ok(all)
    }

    /// One delivery, with what is sent (`body`) and its attempts (`log`).
    pub async fn webhook_delivery(&self, id: &str, delivery: &str) -> Result<Value, ClientError> {
        self.call(Method::GET, &format!("/webhooks/{id}/deliveries/{delivery}"), None).await
    }

    /// Sends again what was sent; the response is the new delivery.
    pub async fn redeliver_webhook(&self, id: &str, delivery: &str) -> Result<Value, ClientError> {
        self.call(Method::POST, &format!("/webhooks/{id}/deliveries/{delivery}/redeliver"), None).await
    }
}
