//! What plans offer on this host: as configured, but no more CPUs than the agent gives one sandbox.
//!
//! A plan is configured before anybody knows the host. What the host has not got would be refused by the agent at every
//! create; so it is not offered, neither shown nor taken, and the log says so once.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use sandpiper_protocol::agent::PlanSizes;

use crate::plan::{Plan, PlanLimits, Plans};

/// The plans.
#[derive(Debug)]
pub struct Offer {
    configured: Plans,
    current: RwLock<Plans>,
}

impl Offer {
    /// As configured, until the agent has said what it gives.
    pub fn new(configured: Plans) -> Self {
        Self { current: RwLock::new(configured.clone()), configured }
    }

    /// The limits of `plan`.
    pub fn of(&self, plan: Plan) -> PlanLimits {
        self.current.read().unwrap_or_else(PoisonError::into_inner).of(plan).clone()
    }

    /// In which sizes sandboxes come by their plans.
    pub fn sizes(&self) -> PlanSizes {
        let root_disks_gib = BTreeSet::from(Plan::ALL.map(|plan| self.of(plan).root_disk_gib));
        PlanSizes { root_disks_gib: Vec::from_iter(root_disks_gib) }
    }

    /// The agent gives one sandbox at most so many CPUs.
    pub fn cap(&self, vcpus_max: u32) {
        let mut capped = self.configured.clone();
        for plan in Plan::ALL {
            let limits = capped.of_mut(plan);
            limits.cpu_values.retain(|cpus| *cpus <= vcpus_max);
            limits.build.cpu = limits.build.cpu.min(vcpus_max);
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if *current == capped {
            return;
        }
        let is_capped = |plan: &Plan| capped.of(*plan).cpu_values != self.configured.of(*plan).cpu_values;
        for plan in Plan::ALL.into_iter().filter(is_capped) {
            tracing::warn!(
                %plan,
                configured = ?self.configured.of(plan).cpu_values,
                offered = ?capped.of(plan).cpu_values,
                "the agent gives a sandbox at most {vcpus_max} CPUs (limits.max_vcpus), so the plan offers no more"
            );
        }
        *current = capped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_plan_offers_more_cpus_than_the_agent_gives() {
        let offer = Offer::new(Plans::default());
        let offered = || Plan::ALL.map(|plan| offer.of(plan).cpu_values.last().copied());
        assert_eq!(offered(), [Some(2), Some(8), Some(32)]);

        offer.cap(16);
        assert_eq!(offered(), [Some(2), Some(8), Some(16)]);

        offer.cap(64);
        assert_eq!(offered(), [Some(2), Some(8), Some(32)], "the agent was started anew with another limit");
    }
}
