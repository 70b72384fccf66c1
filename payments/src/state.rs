//! What handlers and tasks of this side work with.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use sandpiper_accounts::{Accounts, Operators};
use sandpiper_db::secrets::Vault;
use sandpiper_http::clock::Clock;
use sandpiper_http::json::BodyLimit;
use sandpiper_http::limits::RateLimits;
use tokio::sync::watch;

use crate::delivery::{Merchants, Webhooks};
use crate::responses::ResponseCache;
use crate::settings::Settings;
use crate::store::Store;

/// The state; cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// The parts of an [`App`].
#[derive(Debug)]
pub struct Parts {
    pub settings: Settings,
    pub store: Store,
    /// Seals merchants' secret keys.
    pub vault: Arc<Vault>,
    pub rate_limits: RateLimits,
    /// Whose keys have a rate limit of their own; that above is of merchants' keys.
    pub operators: Operators,
    /// Users of merchants, and of teams where there are any.
    pub accounts: Accounts,
    pub clock: Clock,
    /// To what merchants have asked, while nothing of it has changed.
    pub responses: ResponseCache,
    pub webhooks: Arc<Webhooks>,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl App {
    /// Assembles the state.
    pub fn new(settings: Settings, store: Store, vault: Vault, clock: Clock) -> Self {
        let vault = Arc::new(vault);
        let (keys, audit) = (store.operator_keys.clone(), store.audit.clone());
        let operators = Operators::new(keys, audit, settings.operator_rate_limit, clock.clone());
        let merchants = Merchants { keys: store.merchant_keys.clone(), vault: vault.clone() };
        let deliveries = store.delivery_claims.clone();
        let webhooks = Webhooks::new(settings.webhooks.clone(), deliveries, merchants, clock.clone());
        Self(Arc::new(Parts {
            rate_limits: RateLimits::new(settings.rate_limit),
            operators,
            accounts: Accounts::new(store.users.clone(), store.login_sessions.clone()),
            webhooks: Arc::new(webhooks),
            settings,
            store,
            vault,
            clock,
            responses: ResponseCache::default(),
        }))
    }
}

/// Between two looks for keys that have not asked for a while.
const PRUNING: Duration = Duration::from_secs(10);

/// Forgets the rate limits of keys that have not asked for a while, again and again until `stop` changes.
pub async fn prune_rate_limits(app: App, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(PRUNING) => {}
            _ = stop.changed() => return,
        }
        app.rate_limits.prune();
        app.operators.prune();
        app.accounts.limits.prune();
    }
}

impl FromRef<App> for BodyLimit {
    fn from_ref(app: &App) -> Self {
        Self(app.settings.request_body_limit)
    }
}
