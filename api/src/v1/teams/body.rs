//! A team, as requests see it.

use jiff::Timestamp;
use sandpiper_accounts::Role;
use serde::Serialize;
use utoipa::ToSchema;

use crate::plan::Plan;
use crate::store::teams::Team;

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
    pub created_at: Timestamp,
}

impl TeamBody {
    pub fn new(team: Team, role: Option<Role>) -> Self {
        let Team { id, slug, plan, personal_of, created_at } = team;
        Self { id: id.to_string(), slug, plan, is_personal: personal_of.is_some(), role, created_at }
    }
}
