//! The application: the state that every handler gets, and the router.
//!
//! Within [`layers`], which are around all routes, a request passes:
//!
//! 1. where something is changed, under `/v1` [`v1::mutation`] (authentication, body, idempotency key), under
//!    `/operator` [`operator::audited`]: the rest runs to its end even if the client hangs up, and is written to the audit;
//! 2. the handler, whose parameters say which capability it needs.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use axum::routing::get;
use axum::{Router, middleware};
use sandpiper_db::secrets::Vault;
use sandpiper_http::clock::Clock;
use sandpiper_http::json::BodyLimit;
use sandpiper_http::limits::RateLimits;
use sandpiper_http::request::{Observer, Render};
use sandpiper_http::{error, layers};

use crate::config::Config;
use crate::dispatch::network::Turns;
use crate::dispatch::profiles::KnownProfiles;
use crate::dispatch::{AgentClient, InFlight};
use crate::merchant::answers::Answers;
use crate::metrics::Metrics;
use crate::offer::Offer;
use crate::store::Store;
use crate::webhooks::Webhooks;
use crate::{docs, merchant, operator, portal, v1};

/// What handlers work with; cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// The parts of an [`App`].
#[derive(Debug)]
pub struct Parts {
    pub config: Config,
    pub store: Store,
    pub vault: Vault,
    pub agent: AgentClient,
    pub rate_limits: RateLimits,
    /// Of operator keys; all other keys have the one above.
    pub operator_rate_limits: RateLimits,
    pub metrics: Metrics,
    pub clock: Clock,
    /// Sandboxes that this process is creating or removing at the agent; nobody else touches their rows.
    pub in_flight: InFlight,
    /// One policy at a time is sent for each sandbox.
    pub policy_turns: Turns,
    pub profiles: KnownProfiles,
    pub offer: Offer,
    /// To what merchants have asked, while nothing of it has changed.
    pub answers: Answers,
    pub webhooks: Webhooks,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl App {
    /// Assembles an application.
    pub fn new(config: Config, store: Store, vault: Vault, clock: Clock) -> Self {
        let agent = AgentClient::new(config.agent_socket.clone());
        let rate_limits = RateLimits::new(config.rate_limit);
        let operator_rate_limits = RateLimits::new(config.operator_rate_limit);
        let webhooks = Webhooks::new(&config.webhooks);
        let offer = Offer::new(config.plans.clone());
        Self(Arc::new(Parts {
            config,
            store,
            vault,
            agent,
            rate_limits,
            operator_rate_limits,
            metrics: Metrics::new(),
            clock,
            in_flight: InFlight::default(),
            policy_turns: Turns::default(),
            profiles: KnownProfiles::default(),
            offer,
            answers: Answers::default(),
            webhooks,
        }))
    }

    /// What is served to the operator's monitoring, on a listener of its own: figures of all teams, without a key.
    pub fn metrics_router(&self) -> Router {
        Router::new().route("/metrics", get(crate::metrics::metrics)).with_state(self.clone())
    }

    /// Everything else that is served.
    pub fn router(&self) -> Router {
        let (api, document) = v1::router().split_for_parts();
        let audited = middleware::from_fn_with_state(self.clone(), operator::audited::run);
        let (payments, payments_document) =
            merchant::document::of(merchant::router(), operator::router().route_layer(audited));
        let routes = api
            .route_layer(middleware::from_fn_with_state(self.clone(), v1::mutation::run))
            .merge(payments)
            .merge(docs::router(&document))
            .merge(portal::router())
            .merge(merchant::document::router(&payments_document))
            .route("/healthz", get(crate::metrics::healthz))
            .with_state(self.clone());
        let observer = Observer { metrics: self.metrics.requests.clone(), envelope };
        layers::around(routes, observer, self.config.timing.request, &self.config.cors_origins)
    }
}

impl FromRef<App> for BodyLimit {
    fn from_ref(app: &App) -> Self {
        Self(app.config.request_body_limit)
    }
}

/// The envelope of errors under a path.
fn envelope(path: &str) -> Render {
    if merchant::error::speaks(path) { merchant::error::render } else { error::render }
}
