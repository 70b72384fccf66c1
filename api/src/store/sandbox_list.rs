//! Pages of a team's sandboxes: by id, newest first, or by the time of the last start.
//!
//! A page is found by what the one before ended with, not by an offset: what is created or destroyed between two pages
//! neither repeats nor hides a row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, count, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;

use super::sandbox_documents::WITH_DOCUMENTS;
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

/// Which sandboxes a list by start shows, and in which order.
#[derive(Debug, Clone, Default)]
pub struct ByStart {
    pub filter: Filter,
    pub order: Order,
    /// Those that were started later than this.
    pub started_after: Option<Timestamp>,
    /// A template's slug, or a checkpoint's id: what they were made from.
    pub template: Option<String>,
}

/// The order of a list by start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    NewestFirst,
    OldestFirst,
}

/// A place in a list by start: after the sandbox of this id, which was started then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartKey {
    started_ms: i64,
    id: String,
}

impl fmt::Display for StartKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.started_ms, self.id)
    }
}

impl FromStr for StartKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (started_ms, id) = text.split_once('.').ok_or(())?;
        Ok(Self { started_ms: started_ms.parse().map_err(|_| ())?, id: id.to_owned() })
    }
}

/// One page of a list by start.
#[derive(Debug)]
pub struct PageByStart {
    pub sandboxes: Vec<SandboxRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<StartKey>,
}

/// When a sandbox was started; one that was not yet, when it was made.
const STARTED: &str = "COALESCE(s.started_at_ms, s.created_at_ms)";

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
        let mut ids = page_of(filter, team_id);
        if let Some(after) = after {
            ids.push(" AND ").push(filter.id()).push(" < ").push_bind(after);
        }
        ids.push(" ORDER BY ").push(filter.id()).push(" DESC");
        let (sandboxes, more) = self.page(ids, limit, &["s.id DESC"]).await?;
        let after = sandboxes.last().filter(|_| more).map(|last| last.id.clone());
        Ok(Page { sandboxes, after })
    }

    /// The `limit` sandboxes of the team that match, from the one that follows `after` in the order of the list.
    pub async fn list_by_start(
        &self,
        team_id: &TeamId,
        select: &ByStart,
        after: Option<&StartKey>,
        limit: u32,
    ) -> Result<PageByStart, StoreError> {
        let mut ids = page_of(&select.filter, team_id);
        select.push_to(&mut ids);
        let (beyond, direction) = match select.order {
            Order::NewestFirst => ("<", "DESC"),
            Order::OldestFirst => (">", "ASC"),
        };
        if let Some(StartKey { started_ms, id }) = after {
            ids.push(" AND (").push(STARTED).push(" ").push(beyond).push(" ").push_bind(*started_ms);
            ids.push(" OR (").push(STARTED).push(" = ").push_bind(*started_ms);
            ids.push(" AND s.id ").push(beyond).push(" ").push_bind(id.as_str()).push("))");
        }
        let order = [STARTED, " ", direction, ", s.id ", direction];
        order.iter().fold(ids.push(" ORDER BY "), |ids, part| ids.push(part));
        let (sandboxes, more) = self.page(ids, limit, &order).await?;
        let key = |row: &SandboxRow| StartKey {
            started_ms: to_ms(row.started_at.unwrap_or(row.created_at)),
            id: row.id.clone(),
        };
        let after = sandboxes.last().filter(|_| more).map(key);
        Ok(PageByStart { sandboxes, after })
    }

    /// How many sandboxes of the team match.
    pub async fn count_matching(&self, team_id: &TeamId, select: &ByStart) -> Result<u64, StoreError> {
        let mut query = Statement::new("SELECT COUNT(*) AS n FROM ");
        select.filter.push_to(&mut query, team_id);
        select.push_to(&mut query);
        count(query.build().fetch_one(self.database.read()).await?.try_get("n")?)
    }
}

/// The ids of those that match, to be narrowed down and put in order.
fn page_of(filter: &Filter, team_id: &TeamId) -> Statement {
    let mut ids = Statement::new(WITH_DOCUMENTS);
    ids.push("JOIN (SELECT s.id FROM ");
    filter.push_to(&mut ids, team_id);
    ids
}

impl Sandboxes {
    /// The first `limit` of [`page_of`], and whether there are more. The documents of those alone are read, whatever was gone
    /// through to find them.
    async fn page(
        &self,
        mut ids: Statement,
        limit: u32,
        order: &[&'static str],
    ) -> Result<(Vec<SandboxRow>, bool), StoreError> {
        // One more than asked for tells whether there is a next page.
        ids.push(" LIMIT ").push_bind(i64::from(limit) + 1).push(") page ON page.id = s.id ORDER BY ");
        for part in order {
            ids.push(part);
        }
        let mut rows = ids.build().fetch_all(self.database.read()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows.iter().map(SandboxRow::read_with_documents).collect::<Result<_, _>>()?, more))
    }
}

impl Filter {
    /// The tables to look in, and the conditions.
    fn push_to(&self, query: &mut Statement, team_id: &TeamId) {
        let mut pairs = self.metadata.iter();
        // The index has the ids of a pair in the order of a list: the first pair is gone through, up to the end of the page, and
        // SQLite, which knows nothing of how many there are, takes tables that are joined so in the order given.
        match pairs.next() {
            Some((key, value)) => {
                query.push("sandbox_metadata m CROSS JOIN sandboxes s WHERE s.id = m.sandbox_id");
                query.push(" AND m.team_id = ").push_bind(team_id.as_str());
                query.push(" AND m.key = ").push_bind(key).push(" AND m.value = ").push_bind(value);
            }
            None => {
                query.push("sandboxes s WHERE s.team_id = ").push_bind(team_id.as_str());
            }
        }
        query.push(" AND s.state <> 'destroyed'");
        if !self.states.is_empty() {
            query.push(" AND s.state IN ").push_list(self.states.iter().map(|state| state.as_str()));
        }
        for (key, value) in pairs {
            query.push(" AND EXISTS (SELECT 1 FROM sandbox_metadata o WHERE o.sandbox_id = s.id AND o.key = ");
            query.push_bind(key).push(" AND o.value = ").push_bind(value).push(")");
        }
    }

    /// The column that has the ids of what is gone through.
    fn id(&self) -> &'static str {
        if self.metadata.is_empty() { "s.id" } else { "m.sandbox_id" }
    }
}

impl ByStart {
    /// The conditions beside those of the filter.
    fn push_to(&self, query: &mut Statement) {
        if let Some(started_after) = self.started_after {
            query.push(" AND ").push(STARTED).push(" > ").push_bind(to_ms(started_after));
        }
        if let Some(template) = &self.template {
            query.push(" AND COALESCE(s.snapshot_id, s.template) = ").push_bind(template.as_str());
        }
    }
}
