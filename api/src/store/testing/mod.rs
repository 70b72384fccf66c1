//! Stores for unit tests.

use std::ops::Deref;

use sqlx::Acquire;

use super::{DatabaseLocation, Store, Tx};

mod database;

pub(crate) use database::TestDatabase;

/// A store on a database of its own, which goes with it.
#[derive(Debug)]
pub(crate) struct TestStore {
    store: Store,
    database: TestDatabase,
}

/// A database without any table.
pub(crate) async fn database_without_tables() -> TestDatabase {
    TestDatabase::copied_from("template0").await
}

/// A store without any content.
pub(crate) async fn test_store() -> TestStore {
    let database = TestDatabase::new().await;
    let store = Store::open(&database.location.parse().unwrap()).await.unwrap();
    TestStore { store, database }
}

/// Why the database refuses a statement; empty where it does not. A refusal leaves the transaction as it was.
pub(crate) async fn refusal(tx: &mut Tx, statement: &'static str) -> String {
    let mut savepoint = tx.begin().await.unwrap();
    match sqlx::raw_sql(statement).execute(&mut *savepoint).await {
        Ok(_) => {
            savepoint.commit().await.unwrap();
            String::new()
        }
        Err(error) => {
            savepoint.rollback().await.unwrap();
            error.to_string()
        }
    }
}

impl TestStore {
    /// Where another store finds the same database.
    pub(crate) fn location(&self) -> DatabaseLocation {
        self.database.location.parse().unwrap()
    }
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}
