//! What a team may hold on a host, and how fast each of its machines may be: told to the agent by the API process, which knows
//! the team's plan, and kept by it, so that it holds also where no API process is asked.

use serde::{Deserialize, Serialize};

use crate::ids::TeamId;
use crate::vmm::{DiskLimits, NetLimits};

/// Of one team. The last that the agent was told holds.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Allowance {
    /// Its id. The agent knows nothing else of teams.
    pub team: TeamId,
    /// What its machines may hold together; those that hold more already go on.
    pub quota: Amounts,
    /// Of each disk of a machine that starts from then on, within what the host gives every one.
    #[serde(default)]
    pub disk: DiskLimits,
    /// Likewise, of its network device.
    #[serde(default)]
    pub network: NetLimits,
    /// Whether it is disabled: nothing of it starts, and requests to what runs of it are refused. The API process has that stopped.
    #[serde(default)]
    pub disabled: bool,
}

/// What machines hold together, or may hold.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Amounts {
    pub sandboxes: u32,
    /// vCPUs.
    pub cpu: u32,
    pub memory_mb: u64,
}

impl Amounts {
    /// This and `more`, unless one of the sums is above that of `most`.
    pub fn plus(self, more: Self, most: Self) -> Option<Self> {
        let sum = Self {
            sandboxes: self.sandboxes.checked_add(more.sandboxes)?,
            cpu: self.cpu.checked_add(more.cpu)?,
            memory_mb: self.memory_mb.checked_add(more.memory_mb)?,
        };
        let fits = sum.sandboxes <= most.sandboxes && sum.cpu <= most.cpu && sum.memory_mb <= most.memory_mb;
        fits.then_some(sum)
    }
}

/// Allowances that are new, or may be. Teams that are left out keep theirs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Allowances {
    pub allowances: Vec<Allowance>,
}

/// What plans give each sandbox, whatever its team.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct PlanSizes {
    /// GiB of the root disk: of each plan that differs from the others.
    pub root_disks_gib: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_amount_counts_by_itself() {
        let most = Amounts { sandboxes: 2, cpu: 4, memory_mb: 512 };
        let one = Amounts { sandboxes: 1, cpu: 2, memory_mb: 256 };
        let two = one.plus(one, most);
        assert_eq!(two, Some(most));
        let beside = |more| one.plus(more, most);
        assert_eq!(beside(Amounts { sandboxes: 2, ..one }), None);
        assert_eq!(beside(Amounts { cpu: 3, ..one }), None);
        assert_eq!(beside(Amounts { memory_mb: 257, ..one }), None);
        assert_eq!(beside(Amounts { cpu: u32::MAX, ..one }), None);
    }
}
