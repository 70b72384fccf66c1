//! Sealing anew what is sealed in the database, so that an older key is needed no more.

use sqlx::Row;

use crate::secrets::Vault;
use crate::{Database, StoreError};

/// Rows that are written in one transaction.
const AT_A_TIME: i64 = 100;

/// A column of what is sealed, each for the id of its row.
#[derive(Debug, Clone, Copy)]
pub struct SealedColumn {
    /// For people: `envs of sandboxes`.
    pub name: &'static str,
    /// `id` and `sealed` of rows that have something, by id: those after `$1`, at most `$2`.
    pub select: &'static str,
    /// Puts `$1` into the row with the id `$2`, if that still has `$3`.
    pub update: &'static str,
}

/// What became of a column.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Rows that are sealed under the first key now.
    pub rows: u64,
    /// Ids of rows that open under no key, and were left as they are.
    pub unreadable: Vec<String>,
}

/// Seals all of a column under the first key of `vault`.
///
/// # Errors
///
/// The database fails. Rows that were done stay done, and all others as they were.
pub async fn reseal(database: &Database, vault: &Vault, column: &SealedColumn) -> Result<Resealed, StoreError> {
    let mut done = Resealed::default();
    let mut after = String::new();
    loop {
        let mut tx = database.write().await?;
        let rows = sqlx::query(column.select).bind(after.clone()).bind(AT_A_TIME).fetch_all(&mut *tx).await?;
        for row in &rows {
            let (id, sealed): (String, String) = (row.try_get("id")?, row.try_get("sealed")?);
            after.clone_from(&id);
            let anew = vault.unseal(&id, &sealed).ok().and_then(|plain| vault.seal(&id, &plain).ok());
            let Some(anew) = anew else {
                done.unreadable.push(id);
                continue;
            };
            let update = sqlx::query(column.update).bind(anew).bind(id).bind(sealed);
            done.rows += update.execute(&mut *tx).await?.rows_affected();
        }
        tx.commit().await?;
        if rows.is_empty() {
            return Ok(done);
        }
    }
}
