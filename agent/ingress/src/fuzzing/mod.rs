//! What the fuzz targets reach (`tests/fuzz`): one exchange with a guest, and one connection of a client.

mod answer;
mod request;

use std::time::Duration;

pub use self::answer::{Answer, exchange};
pub use self::request::{CLIENT, Ingress, Passed};

/// No input takes so long.
const TIMEOUT: Duration = Duration::from_secs(60);
