//! A team, as requests see it.

use jiff::Timestamp;
use sandpiper_accounts::Role;
use serde::Serialize;
use utoipa::ToSchema;

use crate::plan::Plan;
use crate::store::teams::{Disabled, Team};

/// That the operator of the host has a team disabled: nothing of it runs or is reached, and nothing of it is deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Disabled)]
pub struct DisabledBody {
    /// Since then.
    pub at: Timestamp,
    /// Why, in the operator's words.
    pub reason: String,
}

impl From<Disabled> for DisabledBody {
    fn from(Disabled { at, reason }: Disabled) -> Self {
        Self { at, reason }
    }
}

/// A team.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Team)]
pub struct TeamBody {
    pub id: String,
    pub slug: String,
    pub plan: Plan,
    /// Whether it is somebody's personal team.
    pub is_personal: bool,
    /// Of the user who asks; null for an API key.
    pub role: Option<Role>,
    /// Null while it is not disabled.
    pub disabled: Option<DisabledBody>,
    pub created_at: Timestamp,
}

impl TeamBody {
    pub fn new(team: Team, role: Option<Role>) -> Self {
        let Team { id, slug, plan, personal_of, disabled, created_at } = team;
        let (is_personal, disabled) = (personal_of.is_some(), disabled.map(DisabledBody::from));
        Self { id: id.to_string(), slug, plan, is_personal, role, disabled, created_at }
    }
}
