//! What handlers and tasks of the sandbox side work with.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use sandpiper_db::secrets::Vault;
use sandpiper_http::clock::Clock;
use sandpiper_http::json::BodyLimit;
use sandpiper_http::limits::RateLimits;
use tokio::sync::Semaphore;

use crate::agent_client::AgentClient;
use crate::in_flight::{InFlight, KeyedLocks};
use crate::metrics::Metrics;
use crate::offer::Offer;
use crate::profiles::KnownProfiles;
use crate::settings::Settings;
use crate::store::Store;

/// Large documents that requests may have in memory at a time.
const LARGE_BODIES: usize = 4;

/// The state; cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// The parts of an [`App`].
#[derive(Debug)]
pub struct Parts {
    pub settings: Settings,
    pub store: Store,
    /// Seals tenants' secrets.
    pub vault: Vault,
    pub agent: AgentClient,
    pub rate_limits: RateLimits,
    pub metrics: Metrics,
    pub clock: Clock,
    /// Sandboxes that this process is creating or removing at the agent; nobody else touches their rows.
    pub in_flight: InFlight,
    /// One policy at a time is sent for each sandbox.
    pub policy_locks: KeyedLocks,
    /// One permit for each large document in memory.
    pub large_bodies: Arc<Semaphore>,
    pub profiles: KnownProfiles,
    pub offer: Offer,
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
        Self(Arc::new(Parts {
            agent: AgentClient::new(settings.agent_socket.clone()),
            rate_limits: RateLimits::new(settings.rate_limit),
            offer: Offer::new(settings.plans.clone()),
            settings,
            store,
            vault,
            metrics: Metrics::default(),
            clock,
            in_flight: InFlight::default(),
            policy_locks: KeyedLocks::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            profiles: KnownProfiles::default(),
        }))
    }
}

impl FromRef<App> for BodyLimit {
    fn from_ref(app: &App) -> Self {
        Self(app.settings.request_body_limit)
    }
}
