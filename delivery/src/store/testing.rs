//! Endpoints for this crate's own tests, in tables that the migrations make.

use sandpiper_db::statement::Names;
use sandpiper_db::testing::TestStore;
use sandpiper_db::{Database, StoreError};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Endpoint, names};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TestEndpoint(pub(crate) [String; 2]);

impl Endpoint for TestEndpoint {
    const NAMES: &'static Names =
        &names("webhook_endpoints", "webhook_deliveries", "webhook_attempts", ["merchant_id", "realm"], "1 = 0");
    const LABELS: [&'static str; 2] = ["owner", "part"];

    fn key(&self) -> [&str; 2] {
        [&self.0[0], &self.0[1]]
    }

    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        Ok(Self([row.try_get("merchant_id")?, row.try_get("realm")?]))
    }

    fn span(&self) -> tracing::Span {
        tracing::Span::none()
    }
}

pub(crate) async fn test_database() -> TestStore<Database> {
    TestStore::new(|database| database).await
}
