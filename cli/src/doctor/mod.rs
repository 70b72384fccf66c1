//! Whether this machine can run sandboxes, found by trying.
//!
//! Three rungs:
//!
//! 1. KVM runs a guest's kernel at full speed: sandboxes run here directly.
//! 2. `/dev/kvm` works, but kernel mode of a guest is emulated and incomplete: monitors can be built and tested here,
//!    Linux guests need the nested host.
//! 3. No usable KVM: everything runs in the nested host, a virtual machine in software.

mod checks;
mod clock;
mod cores;
mod installation;
mod network;
mod payload;
mod processor;
mod units;

use std::fmt;

pub(crate) use checks::{Paths, Verdict, all, sibling};
pub(crate) use installation::{Installation, SETTINGS_DIR, imported};

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rung {
    Direct,
    Emulated { why: String },
    Nested { why: String },
}

impl Rung {
    /// Finds the rung by running a few instructions in a virtual machine.
    pub(crate) fn find() -> Self {
        match payload::run() {
            Ok(payload::Trial::Complete) => Self::Direct,
            Ok(payload::Trial::Incomplete(why)) => Self::Emulated { why },
            Err(why) => Self::Nested { why },
        }
    }

    pub(crate) fn number(&self) -> u8 {
        match self {
            Self::Direct => 1,
            Self::Emulated { .. } => 2,
            Self::Nested { .. } => 3,
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => write!(f, "rung 1: KVM runs Linux guests here"),
            Self::Emulated { why } => write!(f, "rung 2: /dev/kvm only runs small payloads here ({why})"),
            Self::Nested { why } => write!(f, "rung 3: no KVM here ({why})"),
        }
    }
}
