//! Teams as a source of deliveries.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandpiper_db::StoreError;
use sandpiper_db::secrets::Vault;
use sandpiper_delivery::{SigningKeys, Source};
use sandpiper_webhook::SigningKey;

use crate::store::Webhooks;
use crate::store::webhooks::WebhookKey;

/// What the tasks work with that send teams' webhooks.
pub type TeamWebhooks = sandpiper_delivery::Webhooks<Teams>;

/// Whose webhooks these are.
#[derive(Debug)]
pub struct Teams {
    pub store: Webhooks,
    /// Opens the secrets that sign.
    pub vault: Arc<Vault>,
}

impl Source for Teams {
    type Endpoint = WebhookKey;

    const NO_SECRET: &'static str = "The webhook has no secret; it is deleted";

    async fn signing_keys(&self, endpoints: &BTreeSet<WebhookKey>) -> Result<SigningKeys<WebhookKey>, StoreError> {
        let sealed = self.store.sealed_secrets(endpoints).await?;
        Ok(sealed.into_iter().map(|(key, sealed)| (key.clone(), self.open(&key, &sealed))).collect())
    }
}

impl Teams {
    fn open(&self, key: &WebhookKey, sealed: &str) -> Result<SigningKey, String> {
        let secret = self.vault.unseal(&key.id, sealed).map_err(|_| {
            format!("The secret of {} cannot be recovered; restore the key file, or rotate the secret", key.id)
        })?;
        // What is no text is no secret either, and an empty one is refused as such.
        SigningKey::from_secret(std::str::from_utf8(&secret).unwrap_or_default())
            .map_err(|error| format!("The secret of {} is none: {error}; rotate it", key.id))
    }
}
