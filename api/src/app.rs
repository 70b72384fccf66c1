//! The application: the state that every handler gets, and the router.
//!
//! A request passes, from outside in:
//!
//! 0. where origins are configured, [`http::cors`];
//! 1. [`http::observe`]: request id, span, metrics, error envelope;
//! 2. catch-panic and time-out, each an answer in the envelope;
//! 3. where something is changed, under `/v1` [`http::mutation`] (authentication, body, idempotency key), under
//!    `/operator` [`operator::audited`]: the rest runs to its end even if the client hangs up, and is written to the audit;
//! 4. the handler, whose parameters say which capability it needs.

use std::ops::Deref;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use sandpiper_db::secrets::Vault;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;

use crate::auth::RateLimits;
use crate::clock::Clock;
use crate::config::Config;
use crate::dispatch::network::Turns;
use crate::dispatch::profiles::KnownProfiles;
use crate::dispatch::{AgentClient, InFlight};
use crate::error::ApiError;
use crate::merchant::answers::Answers;
use crate::metrics::Metrics;
use crate::offer::Offer;
use crate::store::Store;
use crate::webhooks::Webhooks;
use crate::{docs, http, merchant, operator, portal, v1};

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
        api.route_layer(middleware::from_fn_with_state(self.clone(), http::mutation::run))
            .merge(payments)
            .merge(docs::router(&document))
            .merge(portal::router())
            .merge(merchant::document::router(&payments_document))
            .route("/healthz", get(crate::metrics::healthz))
            .layer(middleware::from_fn_with_state(self.clone(), http::time_out))
            .layer(CatchPanicLayer::custom(answer_to_panic))
            .layer(middleware::from_fn_with_state(self.clone(), http::observe))
            .layer(option_layer(http::cors::layer(&self.config.cors_origins)))
            .with_state(self.clone())
    }
}

/// A panic is a bug here; its message may hold anything, so it goes to the log only.
fn answer_to_panic(panic: Box<dyn std::any::Any + Send>) -> Response {
    let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    ApiError::internal(format!("panic: {what}")).into_response()
}
