//! Where creates leave which warm snapshots they would have liked to find. [`crate::upkeep`] makes them.

use sandpiper_images::snapshots::Recipe;
use tokio::sync::mpsc;

/// Orders that wait. One that finds the queue full comes again with the next create.
const ORDERS: usize = 16;

/// A snapshot that a create would have liked to find.
#[derive(Debug, Clone)]
pub(crate) struct WarmOrder {
    pub(crate) key: String,
    pub(crate) recipe: Recipe,
}

/// The end of the queue at which orders are taken.
pub(crate) type Ordered = mpsc::Receiver<WarmOrder>;

/// The end of the queue at which orders are left. Cheap to clone.
#[derive(Clone)]
pub(super) struct WarmOrders(mpsc::Sender<WarmOrder>);

/// A queue for orders, both ends of it.
pub(super) fn queue() -> (WarmOrders, Ordered) {
    let (sender, receiver) = mpsc::channel(ORDERS);
    (WarmOrders(sender), receiver)
}

impl WarmOrders {
    /// Has the snapshot made, soon, unless it is being made or was tried in vain not long ago.
    pub(super) fn leave(&self, order: WarmOrder) {
        let _ = self.0.try_send(order);
    }
}
