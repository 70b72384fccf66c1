//! Which egress profiles the host has.
//!
//! The names are the operator's and change rarely: they are remembered for a few seconds, and for as long as the agent is
//! away. A name that is not among the remembered ones is looked for at the agent before it is refused.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_protocol::error_chain::chain;

use crate::agent_client::{AgentClient, AgentError};

/// How long names are not asked for again.
const FRESH: Duration = Duration::from_secs(10);

/// What the agent said last.
#[derive(Debug, Default)]
pub struct KnownProfiles(Mutex<Option<Known>>);

#[derive(Debug, Clone)]
struct Known {
    names: Vec<String>,
    at: Timestamp,
}

impl KnownProfiles {
    fn get(&self) -> Option<Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, known: Known) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// The host's profiles, and among them all of `wanted` if the host has them.
    ///
    /// # Errors
    ///
    /// Those of the agent, if it is away and was never asked before.
    pub async fn names(&self, agent: &AgentClient, now: Timestamp, wanted: &[&str]) -> Result<Vec<String>, AgentError> {
        let known = self.get();
        if let Some(known) = &known
            && now.duration_since(known.at).unsigned_abs() < FRESH
            && wanted.iter().all(|name| known.names.iter().any(|known| known == name))
        {
            return Ok(known.names.clone());
        }
        match (agent.egress_profiles().await, known) {
            (Ok(names), _) => {
                self.set(Known { names: names.clone(), at: now });
                Ok(names)
            }
            (Err(error), Some(known)) => {
                tracing::debug!(error = chain(&error), "responding with the egress profiles that were last read");
                Ok(known.names)
            }
            (Err(error), None) => Err(error),
        }
    }
}
