//! What handlers and tasks of the sandbox side work with.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use sandpiper_accounts::oidc::{OpenError, Provider};
use sandpiper_accounts::{Accounts, Operators};
use sandpiper_client::ClientError;
use sandpiper_db::secrets::Vault;
use sandpiper_http::clock::Clock;
use sandpiper_http::json::BodyLimit;
use sandpiper_http::limits::RateLimits;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::agent_client::AgentClient;
use crate::auth::last_use::LastUse;
use crate::data_planes::DataPlanes;
use crate::in_flight::{InFlight, KeyedLocks, PerTeam};
use crate::metrics::Metrics;
use crate::offer::Offer;
use crate::orchestration::sync::CatalogRequests;
use crate::profiles::KnownProfiles;
use crate::settings::Settings;
use crate::store::Store;
use crate::webhooks::source::{TeamWebhooks, Teams};

/// Large documents that requests may have in memory at a time.
const LARGE_BODIES: usize = 4;

/// The state; cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// Logs of builds and sandboxes that a team follows at a time: each is looked at several times a second.
const FOLLOWERS: usize = 32;
/// Streams of its events that a team has at a time: each asks the database several times a second.
const EVENT_STREAMS: usize = 16;
/// Files of sandboxes that a team reads at a time through this API.
const FILE_READS: usize = 16;
/// Exports of usage at a time: each holds a connection of the database.
const EXPORTS: usize = 2;
/// Files of unknown length that a team sends at a time: each may be as long as all that the plan allows.
const UNANNOUNCED_UPLOADS: usize = 4;

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("Setting oidc")]
    Oidc(#[from] OpenError),
}

/// The parts of an [`App`].
#[derive(Debug)]
pub struct Parts {
    pub settings: Settings,
    pub store: Store,
    /// Seals tenants' secrets.
    pub vault: Arc<Vault>,
    pub agent: AgentClient,
    pub data_planes: DataPlanes,
    pub rate_limits: RateLimits,
    /// Of each team, whatever keys and sessions its requests come with.
    pub team_rate_limits: RateLimits,
    pub accounts: Accounts,
    /// Where people sign in besides, if anywhere.
    pub oidc: Option<Provider>,
    /// Whose keys have a rate limit of their own.
    pub operators: Operators,
    pub last_use: LastUse,
    pub metrics: Metrics,
    pub clock: Clock,
    /// Sandboxes that this process is creating or removing at the agent; nobody else touches their rows.
    pub in_flight: InFlight,
    /// One policy at a time is sent for each sandbox.
    pub policy_locks: KeyedLocks,
    /// One permit for each large document in memory.
    pub large_bodies: Arc<Semaphore>,
    /// Looks at the agent's templates that requests have asked for.
    pub catalog_requests: CatalogRequests,
    /// Logs that are followed.
    pub followers: PerTeam,
    /// Streams of teams' events.
    pub event_streams: PerTeam,
    /// Files of sandboxes that are read through this API.
    pub file_reads: PerTeam,
    /// Files for builds that come without saying how long they are.
    pub unannounced_uploads: PerTeam,
    /// One permit for each export of usage that is under way.
    pub exports: Arc<Semaphore>,
    pub profiles: KnownProfiles,
    pub offer: Offer,
    pub webhooks: Arc<TeamWebhooks>,
    /// Cancelled when this process is to end: whatever is sent without an end ends then, and clients go on elsewhere.
    pub ending: CancellationToken,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl App {
    /// Assembles the state.
    ///
    /// # Errors
    ///
    /// No HTTP client can be made, or the secret of the client of OpenID Connect cannot be read.
    pub fn new(settings: Settings, store: Store, vault: Vault, clock: Clock) -> Result<Self, StateError> {
        let vault = Arc::new(vault);
        let teams = Teams { store: store.webhooks.clone(), vault: vault.clone() };
        let deliveries = store.webhooks.sent.clone();
        let webhooks = TeamWebhooks::new(settings.webhooks.clone(), deliveries, teams, clock.clone());
        let (keys, audit) = (store.operator_keys.clone(), store.audit.clone());
        Ok(Self(Arc::new(Parts {
            operators: Operators::new(keys, audit, settings.operator_rate_limit, clock.clone()),
            webhooks: Arc::new(webhooks),
            data_planes: DataPlanes::new()?,
            file_reads: PerTeam::new(FILE_READS),
            agent: AgentClient::new(settings.agent_socket.clone()),
            rate_limits: RateLimits::new(settings.rate_limit),
            team_rate_limits: RateLimits::new(settings.team_rate_limit),
            accounts: Accounts::new(store.users.clone(), store.login_sessions.clone()),
            oidc: settings.provider()?,
            last_use: LastUse::default(),
            offer: Offer::new(settings.plans.clone()),
            settings,
            store,
            vault,
            metrics: Metrics::default(),
            clock,
            in_flight: InFlight::default(),
            policy_locks: KeyedLocks::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            catalog_requests: CatalogRequests::default(),
            followers: PerTeam::new(FOLLOWERS),
            event_streams: PerTeam::new(EVENT_STREAMS),
            unannounced_uploads: PerTeam::new(UNANNOUNCED_UPLOADS),
            exports: Arc::new(Semaphore::new(EXPORTS)),
            profiles: KnownProfiles::default(),
            ending: CancellationToken::new(),
        })))
    }
}

impl FromRef<App> for BodyLimit {
    fn from_ref(app: &App) -> Self {
        Self(app.settings.request_body_limit)
    }
}
