//! How markets, banks and operators are brought in: all of a file or nothing, and nobody has to wait for it.
//!
//! A file may have many thousands of entries, and there is one writer for everything, payments included. So its banks and
//! operators are *staged* first: written into a table that nobody reads, a few at a time, and between two transactions as
//! long a pause as the first took, which is the others' time. One last transaction, of a few statements however many
//! entries there are, *puts them in place* with the markets and the audit's entry. How long it takes is why a file may only
//! have so many entries.
//!
//! What was staged is removed afterwards, likewise in parts; after a crash, by the next import.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::{Statement, StoreError, Tx, audit, to_ms};
use sandpiper_discovery::{Audience, Market, Seed};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::id;
use tokio::time::{Instant, sleep};

use super::discovery::{Discovery, advance};

/// Rows of a statement, and of a transaction that stages: a power of four, to which statements are filled up.
const AT_ONCE: usize = 64;
/// Between parts. One that took longer waited for others, who have had their time.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// What has been staged for longer is of a process that died.
const ABANDONED: SignedDuration = SignedDuration::from_hours(1);

/// A bank, whose method is empty, or an operator.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row<'a> {
    method: &'a str,
    country_code: &'a str,
    code: &'a str,
    name: &'a str,
    traffic_verticals: String,
    customer_segments: String,
}

/// In the order of their keys, in which they are put in place.
fn rows(seed: &Seed) -> Vec<Row<'_>> {
    let row = |method, country_code, code, name, audience: &Audience| Row {
        method,
        country_code,
        code,
        name,
        traffic_verticals: audience.traffic_verticals.join(" "),
        customer_segments: audience.customer_segments.join(" "),
    };
    let banks = seed.banks.iter().map(|one| row("", &one.country_code, &one.code, &one.name, &one.audience));
    let operators = seed.mobile_operators.iter();
    let operators = operators.map(|one| row(&one.method, &one.country_code, &one.code, &one.name, &one.audience));
    let mut rows: Vec<_> = banks.chain(operators).collect();
    rows.sort();
    rows
}

impl Discovery {
    /// Stores a few entries: all of them or, on an error, none.
    pub async fn store(&self, seed: &Seed) -> Result<(), StoreError> {
        let import = id::generate("imp");
        let mut tx = self.database.write().await?;
        stage(&mut tx, &import, 0, &rows(seed), Timestamp::UNIX_EPOCH).await?;
        put_in_place(&mut tx, &import, &seed.markets).await?;
        unstage(&mut tx, &import, Timestamp::UNIX_EPOCH).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Stores a file with the audit's entry: all of it or, on an error, nothing.
    pub async fn import(&self, seed: &Seed, entry: audit::Entry) -> Result<(), StoreError> {
        let (import, now) = (id::generate("imp"), entry.at);
        let imported = self.stage_and_put_in_place(&import, seed, entry).await;
        if let Err(error) = self.clean_up(&import, now).await {
            tracing::warn!(error = chain(&error), "staged entries are left to the next import");
        }
        imported
    }

    async fn stage_and_put_in_place(&self, import: &str, seed: &Seed, entry: audit::Entry) -> Result<(), StoreError> {
        for (index, part) in rows(seed).chunks(AT_ONCE).enumerate() {
            let began = Instant::now();
            let mut tx = self.database.write_shared().await?;
            stage(&mut tx, import, index * AT_ONCE, part, entry.at).await?;
            tx.commit().await?;
            sleep(began.elapsed().min(LONGEST_PAUSE)).await;
        }
        let mut tx = self.database.write().await?;
        put_in_place(&mut tx, import, &seed.markets).await?;
        audit::insert(&mut tx, &[entry]).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Removes what this import has staged, and what dead processes have.
    async fn clean_up(&self, import: &str, now: Timestamp) -> Result<(), StoreError> {
        let abandoned = now.saturating_sub(ABANDONED).unwrap_or(now);
        loop {
            let began = Instant::now();
            let mut tx = self.database.write_shared().await?;
            let removed = unstage(&mut tx, import, abandoned).await?;
            tx.commit().await?;
            if removed == 0 {
                return Ok(());
            }
            sleep(began.elapsed().min(LONGEST_PAUSE)).await;
        }
    }
}

/// Stages rows, numbered from `first` on.
async fn stage(tx: &mut Tx, import: &str, first: usize, rows: &[Row<'_>], now: Timestamp) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut statement = Statement::new(
        "INSERT INTO import_rows (import_id, number, staged_at_ms, method, country_code, code, name, traffic_verticals, \
             customer_segments) \
         SELECT * FROM (",
    );
    statement.push_rows((first..).zip(rows).map(|(number, row)| {
        [
            import.into(),
            i64::try_from(number).unwrap_or(i64::MAX).into(),
            to_ms(now).into(),
            row.method.into(),
            row.country_code.into(),
            row.code.into(),
            row.name.into(),
            row.traffic_verticals.as_str().into(),
            row.customer_segments.as_str().into(),
        ]
    }));
    statement.push(") AS staged WHERE column1 IS NOT NULL");
    statement.build().execute(&mut **tx).await?;
    Ok(())
}

async fn put_in_place(tx: &mut Tx, import: &str, markets: &[Market]) -> Result<(), StoreError> {
    for part in markets.chunks(AT_ONCE) {
        store_markets(tx, part).await?;
    }
    for statement in [
        "INSERT INTO banks (country_code, code, name, traffic_verticals, customer_segments) \
         SELECT country_code, code, name, traffic_verticals, customer_segments FROM import_rows \
         WHERE import_id = $1 AND method = '' ORDER BY number \
         ON CONFLICT (country_code, code) DO UPDATE \
         SET name = excluded.name, traffic_verticals = excluded.traffic_verticals, \
             customer_segments = excluded.customer_segments",
        "INSERT INTO mobile_operators (country_code, method, code, name, traffic_verticals, customer_segments) \
         SELECT country_code, method, code, name, traffic_verticals, customer_segments FROM import_rows \
         WHERE import_id = $1 AND method <> '' ORDER BY number \
         ON CONFLICT (country_code, method, code) DO UPDATE \
         SET name = excluded.name, traffic_verticals = excluded.traffic_verticals, \
             customer_segments = excluded.customer_segments",
    ] {
        sqlx::query(statement).bind(import).execute(&mut **tx).await?;
    }
    advance(tx).await
}

/// Removes some rows that are this import's, or were staged before `abandoned`; how many.
async fn unstage(tx: &mut Tx, import: &str, abandoned: Timestamp) -> Result<u64, StoreError> {
    let removed = sqlx::query(
        "DELETE FROM import_rows WHERE (import_id, number) IN \
             (SELECT import_id, number FROM import_rows WHERE import_id = $1 OR staged_at_ms < $2 LIMIT $3)",
    )
    .bind(import)
    .bind(to_ms(abandoned))
    .bind(i64::try_from(AT_ONCE).unwrap_or(i64::MAX))
    .execute(&mut **tx)
    .await?;
    Ok(removed.rows_affected())
}

async fn store_markets(tx: &mut Tx, markets: &[Market]) -> Result<(), StoreError> {
    let keys =
        || markets.iter().map(|one| [one.key.country_code.as_str().into(), one.key.currency_code.as_str().into()]);
    let mut added = Statement::new("INSERT INTO markets (country_code, currency_code) SELECT * FROM (");
    added.push_rows(keys()).push(") AS given WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING");
    added.build().execute(&mut **tx).await?;
    let mut forgotten =
        Statement::new("DELETE FROM market_methods WHERE (country_code, currency_code) IN (SELECT * FROM (");
    forgotten.push_rows(keys()).push(") AS given)");
    forgotten.build().execute(&mut **tx).await?;
    let methods: Vec<_> = markets.iter().flat_map(methods).collect();
    for part in methods.chunks(AT_ONCE) {
        let mut offered = Statement::new(
            "INSERT INTO market_methods (country_code, currency_code, direction, method) SELECT * FROM (",
        );
        offered.push_rows(part.iter().map(|words| words.map(Into::into)));
        offered.push(") AS given WHERE column1 IS NOT NULL");
        offered.build().execute(&mut **tx).await?;
    }
    Ok(())
}

/// The rows that say what a market offers.
fn methods(market: &Market) -> impl Iterator<Item = [&str; 4]> {
    let row = |direction, method| [market.key.country_code.as_str(), &market.key.currency_code, direction, method];
    let offered = market.methods_in.iter().map(move |method| row("in", method.as_str()));
    offered.chain(market.methods_out.iter().map(move |method| row("out", method.as_str())))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use sandpiper_db::testing::TestStore;
    use sandpiper_discovery::{Bank, MobileOperator};
    use sqlx::Row as _;

    use super::*;
    use crate::store::Store;
    use crate::store::merchants::MerchantChange;
    use crate::store::testing::test_store;

    fn seed(count: usize) -> Seed {
        let bank = |number| Bank {
            country_code: "NG".to_owned(),
            code: format!("bank-{number}"),
            name: "Bank".to_owned(),
            audience: Audience::default(),
        };
        let operator = |number| MobileOperator {
            country_code: "KE".to_owned(),
            method: "PAYMENT_METHOD_MOBILE_MONEY".to_owned(),
            code: format!("wallet-{number}"),
            name: "Wallet".to_owned(),
            audience: Audience::default(),
        };
        Seed {
            markets: Vec::new(),
            banks: (0..count).map(bank).collect(),
            mobile_operators: (0..count).map(operator).collect(),
        }
    }

    fn entry(at: Timestamp) -> audit::Entry {
        audit::Entry {
            at,
            team_id: audit::OPERATOR.to_owned(),
            key_id: "key".to_owned(),
            user_id: None,
            request_id: "request".to_owned(),
            action: "import".to_owned(),
            resource: None,
            status: 200,
        }
    }

    async fn count(store: &TestStore<Store>, table: &'static str) -> i64 {
        let mut query = Statement::new("SELECT COUNT(*) FROM ");
        query.push(table);
        query.build().fetch_one(store.database.read()).await.unwrap().get(0)
    }

    #[tokio::test]
    async fn what_a_dead_process_has_staged_is_seen_by_nobody_and_removed_by_the_next_import() {
        let store = test_store().await;
        let (died_at, imported) = (Timestamp::UNIX_EPOCH, seed(2 * AT_ONCE));
        let mut tx = store.database.write_shared().await.unwrap();
        stage(&mut tx, "dead", 0, &rows(&seed(AT_ONCE)), died_at).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((count(&store, "import_rows").await, count(&store, "banks").await), (2 * AT_ONCE as i64, 0));

        let later = died_at + ABANDONED + SignedDuration::from_secs(1);
        store.discovery.import(&imported, entry(later)).await.unwrap();

        assert_eq!(count(&store, "import_rows").await, 0);
        let expected = 2 * AT_ONCE as i64;
        assert_eq!((count(&store, "banks").await, count(&store, "mobile_operators").await), (expected, expected));
        assert_eq!(count(&store, "audit").await, 1);
    }

    #[tokio::test]
    async fn others_write_while_a_file_is_staged() {
        let store = test_store().await;
        let (large, at) = (seed(10 * AT_ONCE), Timestamp::UNIX_EPOCH);
        let all = 20 * AT_ONCE as i64;
        let mut importing = pin!(store.discovery.stage_and_put_in_place("large", &large, entry(at)));
        let (mut written, mut was_part_staged) = (0, false);
        loop {
            let (name, change) = (format!("merchant-{written}"), MerchantChange::default());
            tokio::select! {
                biased;
                merchant = store.merchants.create(&name, &change, at) => drop(merchant.unwrap()),
                imported = &mut importing => break imported.unwrap(),
            }
            written += 1;
            was_part_staged |= (1..all).contains(&count(&store, "import_rows").await);
        }
        // In one transaction, nobody would ever see a part of the file, before or after a write of their own.
        assert!(was_part_staged, "{written}");
    }

    #[tokio::test]
    async fn an_import_that_fails_leaves_nothing() {
        let store = test_store().await;
        let mut broken = seed(AT_ONCE);
        // Which the database refuses, and only where it is put in place.
        broken.mobile_operators[0].country_code = "Kenya".to_owned();

        store.discovery.import(&broken, entry(Timestamp::UNIX_EPOCH)).await.unwrap_err();

        for table in ["banks", "mobile_operators", "import_rows", "audit"] {
            assert_eq!(count(&store, table).await, 0, "{table}");
        }
    }
}
