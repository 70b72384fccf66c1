//! Webhooks: merchants are told what became of their payments. `sandpiper-delivery` sends them; this says which there are.
//!
//! Each realm of a merchant is an endpoint, and its secret key signs. An update of a payment makes exactly one delivery, in its own
//! transaction; a person may make more, as replays and tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandpiper_db::StoreError;
use sandpiper_db::secrets::Vault;
use sandpiper_delivery::{SigningKeys, Source};
use sandpiper_protocol::error_chain::chain;

use crate::store::MerchantKeys;
use crate::store::webhook_endpoints::EndpointKey;

pub mod test_event;

pub use sandpiper_delivery::{
    Dependencies, addresses, connection, endpoint_url, jitter, resolver, sender, settings, trust,
};

/// Sends webhooks to merchants.
pub mod worker {
    /// The task.
    pub type Worker = sandpiper_delivery::worker::Worker<super::Merchants>;
}

/// Deletes what merchants were sent long ago.
pub mod retention {
    /// The task.
    pub type Retention = sandpiper_delivery::retention::Retention<super::Merchants>;
}

/// What the tasks work with.
pub type Webhooks = sandpiper_delivery::Webhooks<Merchants>;

/// Whose webhooks these are.
#[derive(Debug)]
pub struct Merchants {
    pub keys: MerchantKeys,
    /// Opens the secrets that sign.
    pub vault: Arc<Vault>,
}

impl Source for Merchants {
    type Endpoint = EndpointKey;

    const NO_SECRET: &'static str = "The realm has no active secret key";

    async fn signing_keys(&self, endpoints: &BTreeSet<EndpointKey>) -> Result<SigningKeys<EndpointKey>, StoreError> {
        let keys = self.keys.signing_keys(&self.vault, endpoints).await?;
        let reason = |error| chain(&error).to_string();
        Ok(keys.into_iter().map(|(endpoint, key)| (endpoint, key.map_err(reason))).collect())
    }
}
