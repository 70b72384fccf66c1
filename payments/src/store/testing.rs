//! Stores for unit tests.

use sandpiper_db::testing::TestStore;

use super::Store;

/// A store without any content.
pub(crate) async fn test_store() -> TestStore<Store> {
    TestStore::new(Store::new).await
}
