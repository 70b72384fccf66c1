//! SQL for SQLite and PostgreSQL, and what else lies on the disk of a process that serves it.
//!
//! The SQL is written once for both databases: `$1` placeholders, `ON CONFLICT`, `RETURNING`, text ids, integer times and
//! booleans. What differs is in two places only: the migrations, a folder for each, the other's twin, and [`database`].
//!
//! The migrations are here as a whole because one database has one history. The queries are not: each side has its own
//! tables in its own `store`, all over the same [`Database`]. Only the [`audit`] is of both.

pub mod audit;
pub mod batch;
pub mod database;
mod decode;
mod error;
pub mod hex;
pub mod location;
pub mod private_files;
pub mod reseal;
pub mod schema;
pub mod secrets;
pub mod sole;
pub mod sqlite_log;
pub mod statement;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod writes;

pub use audit::AuditLog;
pub use batch::Batch;
pub use database::{Database, Tx};
pub use decode::{count, decode_bool, decode_enum, from_ms, to_ms};
pub use error::StoreError;
pub use location::DatabaseLocation;
pub use statement::Statement;
