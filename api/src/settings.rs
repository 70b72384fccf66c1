//! What an operator can set of sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use sandpiper_accounts::oidc;
use sandpiper_dashboard::OIDC_CALLBACK;
use sandpiper_http::limits::RateLimit;
use serde::Deserialize;

use crate::billing::prices::Prices;
use crate::plan::Plans;

/// The settings of this side.
#[derive(Debug, Clone)]
pub struct Settings {
    pub agent_socket: PathBuf,
    /// Whether this process ends TLS itself.
    pub has_tls: bool,
    /// Longest body of a request, in bytes.
    pub request_body_limit: usize,
    /// Of each API key.
    pub rate_limit: RateLimit,
    /// Of all keys and sessions of a team together.
    pub team_rate_limit: RateLimit,
    /// Of each operator key.
    pub operator_rate_limit: RateLimit,
    pub baseline: Baseline,
    /// GiB that a volume may grow to: what the agent gives one, `[volumes] size_gib` there.
    pub volume_size_gib: u32,
    pub plans: Plans,
    /// None where nothing is charged.
    pub prices: Option<Prices>,
    pub events: EventSettings,
    /// None where people sign in with passwords alone.
    pub oidc: Option<oidc::Settings>,
    pub webhooks: sandpiper_delivery::settings::Settings,
    pub timing: Timing,
}

impl Settings {
    /// The provider of OpenID Connect, where there is one.
    ///
    /// # Errors
    ///
    /// The client's secret or a client of HTTP cannot be had.
    pub fn provider(&self) -> Result<Option<oidc::Provider>, oidc::OpenError> {
        let open = |settings| oidc::Provider::open(settings, OIDC_CALLBACK, self.timing.provider);
        self.oidc.clone().map(open).transpose()
    }
}

/// CPU and memory of a template that names none.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    pub cpu: u32,
    pub memory_mb: u32,
}

/// How long events of teams are kept.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventSettings {
    /// Days.
    pub keep_days: u32,
    /// The newest of each team, whatever their age.
    pub keep_most: u32,
}

impl Default for EventSettings {
    fn default() -> Self {
        Self { keep_days: 30, keep_most: 100_000 }
    }
}

/// Durations that no operator needs to set, but tests do.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// To a create request that takes longer the response is a sandbox in `creating`.
    pub create_wait: Duration,
    /// A network policy that the agent takes longer to apply is `pending` in the response.
    pub apply_wait: Duration,
    /// A pause or checkpoint that takes longer goes on after the response.
    pub work_wait: Duration,
    /// Longest time for any request; longer than `create_wait` and `work_wait`, and than the agent takes over a resume or
    /// fork.
    pub request: Duration,
    /// Between two rounds of synchronisation with the agent, and between two attempts to send what is pending.
    pub sync: Duration,
    /// A failed sandbox that the agent has forgotten is kept visible this long.
    pub failed_retention: Duration,
    /// Longest time for one request to the provider of OpenID Connect.
    pub provider: Duration,
    /// A checkpoint of the agent that no row stands for is removed after this long.
    pub orphan_grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            create_wait: Duration::from_secs(30),
            apply_wait: Duration::from_secs(5),
            work_wait: Duration::from_secs(150),
            request: Duration::from_secs(170),
            sync: Duration::from_secs(1),
            failed_retention: Duration::from_secs(3600),
            provider: Duration::from_secs(10),
            orphan_grace: Duration::from_secs(600),
        }
    }
}
