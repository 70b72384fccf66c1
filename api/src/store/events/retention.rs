//! The end of old events, the oldest first and a few at a time.

use jiff::Timestamp;
use sandpiper_db::{StoreError, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;

use super::Events;
use crate::store::webhooks::enqueue::enqueued_of_all;

/// Events of one transaction: few, for the team's next event waits meanwhile.
pub const AT_ONCE: usize = 500;

impl Events {
    /// The teams that have events from before `end`, or more than `most`.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn teams_with_old(&self, end: Timestamp, most: u32) -> Result<Vec<TeamId>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT c.team_id FROM event_counters c WHERE c.last_sequence - c.removed_sequence > $2 \
                 OR EXISTS (SELECT 1 FROM events e WHERE e.team_id = c.team_id \
                            AND e.sequence = c.removed_sequence + 1 AND e.created_at_ms < $1)",
        )
        .bind(to_ms(end))
        .bind(i64::from(most))
        .fetch_all(self.database.read())
        .await?;
        Ok(ids.into_iter().map(TeamId::from).collect())
    }

    /// Removes up to [`AT_ONCE`] of a team's oldest events: those from before `end`, and those that the newest `most` do not
    /// include. Those that a webhook of the team has yet to be looked at for stay. How many that were.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn remove_old(&self, team: &TeamId, end: Timestamp, most: u32) -> Result<usize, StoreError> {
        let mut tx = self.database.write_shared().await?;
        // The counter first: another process that removes them waits here.
        let last: Option<i64> = sqlx::query_scalar(
            "UPDATE event_counters SET removed_sequence = removed_sequence WHERE team_id = $1 RETURNING last_sequence",
        )
        .bind(team.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(last) = last else { return Ok(0) };
        let enqueued = enqueued_of_all(&mut tx, team).await?;
        let oldest =
            sqlx::query("SELECT sequence, created_at_ms FROM events WHERE team_id = $1 ORDER BY sequence LIMIT $2")
                .bind(team.as_str())
                .bind(i64::try_from(AT_ONCE).unwrap_or(i64::MAX))
                .fetch_all(&mut *tx)
                .await?;
        let mut old = Vec::new();
        for row in oldest {
            let (sequence, created_at): (i64, i64) = (row.try_get("sequence")?, row.try_get("created_at_ms")?);
            // From the first that stays, all stay: a reader is told of one place where the gap ends.
            if created_at >= to_ms(end) && sequence > last - i64::from(most) {
                break;
            }
            if enqueued.is_some_and(|enqueued| sequence > enqueued) {
                break;
            }
            old.push(sequence);
        }
        let Some(removed) = old.last() else { return Ok(0) };
        sqlx::query("UPDATE event_counters SET removed_sequence = $2 WHERE team_id = $1")
            .bind(team.as_str())
            .bind(*removed)
            .execute(&mut *tx)
            .await?;
        sqlx::query("DELETE FROM events WHERE team_id = $1 AND sequence <= $2")
            .bind(team.as_str())
            .bind(*removed)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(old.len())
    }
}
