//! The data planes of sandboxes, each reached at its own address with a session of the host's.

use sandpiper_client::{Client, ClientError, DataPlane};
use sandpiper_protocol::agent::Session;

/// What calls them; cheap to clone.
#[derive(Clone)]
pub struct DataPlanes(Client);

impl std::fmt::Debug for DataPlanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DataPlanes(…)")
    }
}

impl DataPlanes {
    /// # Errors
    ///
    /// No HTTP client can be made.
    pub fn new() -> Result<Self, ClientError> {
        // Only sandboxes are asked, each at an address of its own.
        Ok(Self(Client::new("http://localhost", "", None)?))
    }

    /// The one that this session opens.
    pub fn of(&self, Session { data_plane_url, access_token, expires_at }: Session) -> DataPlane {
        let expires_at = expires_at.to_string();
        self.0.data_plane(&sandpiper_client::Session { data_plane_url, access_token, expires_at })
    }
}
