//! Which sides of the API a process serves.

use clap::ValueEnum;

/// A side of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// `/v1` and its part of `/operator`, with the agent of this machine
    Sandboxes,
    /// `/merchant`, its part of `/operator`, and `/portal`, and the webhooks
    Payments,
}

/// The sides that a process serves; by default both.
#[derive(Debug, Clone, Copy)]
pub struct Roles {
    pub sandboxes: bool,
    pub payments: bool,
}

impl Default for Roles {
    fn default() -> Self {
        Self { sandboxes: true, payments: true }
    }
}

impl From<&[Role]> for Roles {
    fn from(roles: &[Role]) -> Self {
        Self { sandboxes: roles.contains(&Role::Sandboxes), payments: roles.contains(&Role::Payments) }
    }
}
