//! How deliveries to merchants are attempted: what `sandpiper-delivery` does with their tables.

use sandpiper_delivery::store::DeliveryStore;
use sandpiper_delivery::store::claims;

use super::webhook_endpoints::EndpointKey;

pub use claims::{Decision, LEASE};

/// Claims and their ends.
pub type DeliveryClaims = DeliveryStore<EndpointKey>;
/// A delivery of which an attempt is to be made now.
pub type Claimed = claims::Claimed<EndpointKey>;
/// An attempt that is over.
pub type Finished = claims::Finished<EndpointKey>;
