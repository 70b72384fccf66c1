//! What must survive of deliveries: claims, attempts, and the line of endpoints that wait for them.
//!
//! Whoever has deliveries brings three tables of its own, in the shape that the migration 0005 gives the first of them: its
//! endpoints, their deliveries, and the attempts. [`Endpoint`] says how they are called. An endpoint is known by two columns, its
//! owner's id and what tells it from others of the same owner; all three tables have nothing else in common with each other's.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use sandpiper_db::statement::Names;
use sandpiper_db::{Batch, Database, Statement, StoreError};
use sqlx::Any;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;

pub mod claims;
pub mod delivery;
pub mod line;
pub mod retention;
#[cfg(test)]
pub(crate) mod testing;

/// Which endpoint, and where those of its kind are stored.
pub trait Endpoint: Debug + Clone + Ord + Hash + Send + Sync + 'static {
    /// What the tables and their two columns are called: see [`names`].
    const NAMES: &'static Names;
    /// What metrics call the two parts of the key.
    const LABELS: [&'static str; 2];

    /// The owner's id, and what tells the endpoint from the owner's others.
    fn key(&self) -> [&str; 2];

    /// The endpoint that a row with both columns names.
    ///
    /// # Errors
    ///
    /// The row has no such columns, or what they hold names nothing.
    fn read(row: &AnyRow) -> Result<Self, StoreError>;

    /// Says in the log which endpoint it is about.
    fn span(&self) -> tracing::Span;
}

/// The names of the tables, and of the two columns that are the key of an endpoint; `held`: of which endpoints nothing is sent for
/// now, a condition on the table of endpoints. What is due there waits.
pub const fn names(
    endpoints: &'static str,
    deliveries: &'static str,
    attempts: &'static str,
    [owner, part]: [&'static str; 2],
    held: &'static str,
) -> [(&'static str, &'static str); 6] {
    [
        ("{endpoints}", endpoints),
        ("{deliveries}", deliveries),
        ("{attempts}", attempts),
        ("{owner}", owner),
        ("{part}", part),
        ("{held}", held),
    ]
}

/// The deliveries to one kind of endpoints.
#[derive(Debug, Clone)]
pub struct DeliveryStore<E> {
    database: Database,
    batch: Batch,
    endpoints: PhantomData<fn() -> E>,
}

impl<E: Endpoint> DeliveryStore<E> {
    /// Those in `database`; what is small and comes often is written by `batch`.
    pub fn new(database: Database, batch: Batch) -> Self {
        Self { database, batch, endpoints: PhantomData }
    }
}

/// A statement on the tables of these endpoints.
pub fn statement<E: Endpoint>(sql: &'static str) -> Statement {
    Statement::naming(E::NAMES, sql)
}

/// Likewise, of one piece.
pub fn query<E: Endpoint>(sql: &'static str) -> Query<'static, Any, AnyArguments> {
    statement::<E>(sql).build()
}
