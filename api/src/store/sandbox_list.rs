//! Pages of a team's sandboxes, newest first.
//!
//! A page is found by the id after which it begins, not by an offset: what is created or destroyed between two pages
//! neither repeats nor hides a row.

use std::collections::{BTreeMap, BTreeSet};

use sandpiper_db::{Statement, StoreError};
use sandpiper_protocol::ids::TeamId;

use super::sandbox_row::{SandboxRow, State};
use super::sandboxes::Sandboxes;

/// Which sandboxes a list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these states; empty: all.
    pub states: BTreeSet<State>,
    /// All of these pairs.
    pub metadata: BTreeMap<String, String>,
}

/// One page.
#[derive(Debug)]
pub struct Page {
    pub sandboxes: Vec<SandboxRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<String>,
}

impl Sandboxes {
    /// The `limit` sandboxes of the team that match, from the one that follows `after` in the order of the list.
    pub async fn list(
        &self,
        team_id: &TeamId,
        filter: &Filter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        let mut query = Statement::new("SELECT s.* FROM sandboxes s WHERE s.state <> 'destroyed'");
        query.push(" AND s.team_id = ").push_bind(team_id.as_str());
        if !filter.states.is_empty() {
            query.push(" AND s.state IN ").push_list(filter.states.iter().map(|state| state.as_str()));
        }
        for (key, value) in &filter.metadata {
            query.push(" AND EXISTS (SELECT 1 FROM sandbox_metadata m WHERE m.sandbox_id = s.id AND m.key = ");
            query.push_bind(key.as_str()).push(" AND m.value = ").push_bind(value.as_str()).push(")");
        }
        if let Some(after) = after {
            query.push(" AND s.id < ").push_bind(after);
        }
        // One more than asked for tells whether there is a next page.
        query.push(" ORDER BY s.id DESC LIMIT ").push_bind(i64::from(limit) + 1);

        let mut rows = query.build().fetch_all(self.database.read()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let sandboxes = self.with_documents(&rows).await?;
        let after = sandboxes.last().filter(|_| more).map(|last| last.id.clone());
        Ok(Page { sandboxes, after })
    }
}
