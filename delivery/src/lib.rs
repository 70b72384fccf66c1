//! Webhooks: deliveries are made by others, and sent from here. Whose they are, and what they tell, this crate does not know.
//!
//! # Dramatis personae
//!
//! * A **source** ([`Source`]) has endpoints and makes deliveries to them. Each has tables ([`store`]), secrets and a worker of
//!   its own.
//! * An **endpoint** is where somebody wants webhooks: a public `https` URL ([`endpoint_url`]). Nothing of one endpoint, be it a
//!   delivery, a secret or a connection, is ever used for another.
//! * A **delivery** is one webhook from its making to its end. It has an id, which the receiver sees as `Idempotency-Key` in
//!   every attempt, and a body, which is stored when it is made and sent byte for byte.
//! * An **attempt** is one HTTP request ([`sender`]), signed afresh with the endpoint's secret of that moment. Its number, 1 to
//!   100, is counted when it is claimed.
//! * The **worker** ([`worker`]) claims deliveries that are due, has attempts made, and writes down how they went.
//! * What has been over for months is deleted ([`retention`]).
//!
//! # What holds at any moment
//!
//! 1. A delivery that is not over is due some time or is claimed; a claim has a lease. So it is attempted again, whoever
//!    dies when.
//! 2. At most 100 attempts are made for it, none more than seven days after its making ([`schedule`]).
//! 3. Nothing is sent unsigned, to a URL that is not `https`, to an address that is not public ([`addresses`]), through a
//!    proxy, or to where a redirect points.
//! 4. No transaction is open while a receiver is waited for.
//! 5. An endpoint that hangs holds a few attempts, and no others' ([`capacity`]).

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use sandpiper_db::StoreError;
use sandpiper_http::clock::Clock;
use sandpiper_protocol::error_chain::chain;
use sandpiper_webhook::SigningKey;
use tokio::sync::Notify;

pub mod addresses;
mod attempt;
pub mod capacity;
pub mod connection;
pub mod endpoint_url;
mod in_progress;
pub mod jitter;
pub mod metrics;
pub mod outcome;
mod pool;
pub mod resolver;
pub mod retention;
pub mod retry_after;
pub mod schedule;
pub mod sender;
pub mod settings;
pub mod store;
pub mod trust;
pub mod worker;

use addresses::AddressRule;
use connection::Connector;
use endpoint_url::{EndpointUrl, UrlError};
use jitter::Jitter;
use metrics::WebhookMetrics;
use resolver::Resolver;
use settings::Settings;
use store::{DeliveryStore, Endpoint};
use trust::TrustError;

/// Whoever has endpoints, and makes deliveries to them.
pub trait Source: Debug + Send + Sync + 'static {
    type Endpoint: Endpoint;

    /// Why a delivery to an endpoint without a secret is held, for people.
    const NO_SECRET: &'static str;

    /// The secrets of these endpoints as they are at this moment; of one that cannot be used, why. Endpoints without one are
    /// left out.
    ///
    /// # Errors
    ///
    /// Those of the database.
    fn signing_keys(
        &self,
        endpoints: &BTreeSet<Self::Endpoint>,
    ) -> impl Future<Output = Result<SigningKeys<Self::Endpoint>, StoreError>> + Send;
}

/// What signs, by endpoint, or why it cannot be used.
pub type SigningKeys<E> = HashMap<E, Result<SigningKey, String>>;

/// What the tasks work with; requests have to do with it to check a URL, and to wake the worker.
#[derive(Debug)]
pub struct Webhooks<S: Source> {
    pub settings: Settings,
    pub store: DeliveryStore<S::Endpoint>,
    pub source: S,
    pub clock: Clock,
    pub metrics: WebhookMetrics,
    rule: AddressRule,
    due: Notify,
}

impl<S: Source> Webhooks<S> {
    /// As configured.
    pub fn new(settings: Settings, store: DeliveryStore<S::Endpoint>, source: S, clock: Clock) -> Self {
        Self {
            rule: AddressRule::new(settings.allow_addresses.clone()),
            settings,
            store,
            source,
            clock,
            metrics: WebhookMetrics::default(),
            due: Notify::new(),
        }
    }

    /// Tells the worker that a delivery was made. To be called after the commit; what is forgotten is found a second later.
    pub fn wake(&self) {
        self.due.notify_one();
    }

    /// A URL that may be configured.
    ///
    /// # Errors
    ///
    /// It is no public `https` URL.
    pub fn check_url(&self, text: &str) -> Result<EndpointUrl, UrlError> {
        EndpointUrl::parse(text, &self.rule)
    }

    fn rule(&self) -> &AddressRule {
        &self.rule
    }
}

/// What the worker has to reach beyond this process, and its jitter: what a test brings its own of.
#[derive(Debug, Clone)]
pub struct Dependencies {
    pub connector: Connector,
    pub jitter: Jitter,
    /// Longest time of an attempt.
    pub attempt_limit: Duration,
}

impl Dependencies {
    /// The real world. What is missing of it on this host, name servers or certificate authorities, makes attempts fail, not
    /// the process, which has other things to do.
    pub fn system(settings: &Settings) -> Result<Self, TrustError> {
        let resolver = match &settings.resolvers[..] {
            [] => Resolver::system(),
            servers => Resolver::asking(servers),
        };
        let resolver = resolver.unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "no usable name servers; no webhook endpoint will resolve");
            Resolver::none("this host knows no name servers".to_owned())
        });
        let tls = match trust::system(settings.ca_file.as_deref()) {
            Err(error @ TrustError::System(_)) => {
                tracing::error!(
                    error = chain(&error),
                    "no usable trust anchors; TLS to every webhook endpoint will fail"
                );
                trust::only([])?
            }
            tls => tls?,
        };
        if !settings.allow_addresses.is_empty() || settings.ca_file.is_some() {
            let (allowed, ca_file) = (&settings.allow_addresses, &settings.ca_file);
            tracing::warn!(
                ?allowed,
                ?ca_file,
                "webhooks may go to addresses that are not public: for development only"
            );
        }
        let rule = AddressRule::new(settings.allow_addresses.clone());
        Ok(Self {
            connector: Connector { resolver, rule, tls },
            jitter: Jitter::system(),
            attempt_limit: sender::ATTEMPT_LIMIT,
        })
    }
}
