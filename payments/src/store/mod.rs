//! What must survive of payments: merchants and their keys, what they may discover, payments, webhook deliveries.
//!
//! One file per resource, each a handle over the same [`Database`].

use sandpiper_accounts::operators::OperatorKeys;
use sandpiper_accounts::{LoginSessions, Users};
use sandpiper_db::reseal::SealedColumn;
use sandpiper_db::{AuditLog, Batch, Database};

pub mod deliveries;
pub mod delivery_claims;
pub mod delivery_list;
pub mod discovery;
mod imports;
pub mod merchant_keys;
pub mod merchant_users;
pub mod merchants;
mod payment_updates;
pub mod payments;
#[cfg(test)]
pub(crate) mod testing;
pub mod webhook_endpoints;

pub use deliveries::Deliveries;
pub use delivery_claims::DeliveryClaims;
pub use discovery::Discovery;
pub use merchant_keys::MerchantKeys;
pub use merchant_users::MerchantUsers;
pub use merchants::Merchants;
pub use payments::Payments;
pub use webhook_endpoints::WebhookEndpoints;

/// What is sealed under the secrets key of merchants, each for the id of its row.
pub const SEALED: [SealedColumn; 1] = [SealedColumn {
    name: "secret keys of merchants",
    select: "SELECT id, sealed FROM merchant_keys WHERE sealed IS NOT NULL AND id > $1 ORDER BY id LIMIT $2",
    update: "UPDATE merchant_keys SET sealed = $1 WHERE id = $2 AND sealed = $3",
}];

/// All handles.
#[derive(Debug, Clone)]
pub struct Store {
    pub audit: AuditLog,
    pub operator_keys: OperatorKeys,
    pub merchants: Merchants,
    pub merchant_keys: MerchantKeys,
    pub merchant_users: MerchantUsers,
    pub users: Users,
    pub login_sessions: LoginSessions,
    pub discovery: Discovery,
    pub payments: Payments,
    pub webhook_endpoints: WebhookEndpoints,
    pub deliveries: Deliveries,
    pub delivery_claims: DeliveryClaims,
}

impl Store {
    /// Over a database that is open. Starts a task that writes in batches.
    pub fn new(database: Database) -> Self {
        let batch = Batch::start(database.clone());
        Self {
            audit: AuditLog::new(database.clone()),
            operator_keys: OperatorKeys::new(database.clone()),
            merchants: Merchants::new(database.clone()),
            merchant_keys: MerchantKeys::new(database.clone()),
            merchant_users: MerchantUsers::new(database.clone()),
            users: Users::new(database.clone()),
            login_sessions: LoginSessions::new(database.clone()),
            discovery: Discovery::new(database.clone()),
            payments: Payments::new(database.clone(), batch.clone()),
            webhook_endpoints: WebhookEndpoints::new(database.clone(), batch.clone()),
            deliveries: Deliveries::new(database.clone(), batch.clone()),
            delivery_claims: DeliveryClaims::new(database, batch),
        }
    }
}
