//! The data planes of sandboxes, each reached at its own address with a session that the API gave.

use axum::http::StatusCode;
use sandpiper_client::{Client, ClientError, DataPlane, Session};
use serde::Deserialize;

use crate::api::Problem;
use crate::shares::Shares;

/// Terminals at a time, of one team and of all together.
const TERMINALS: (usize, usize) = (32, 256);
/// Likewise uploads, each of which may have several files.
const UPLOADS: (usize, usize) = (16, 128);

/// What calls them; cheap to clone.
#[derive(Clone)]
pub struct DataPlanes {
    client: Client,
    pub terminals: Shares,
    pub uploads: Shares,
}

/// The API's response to a request for a session.
#[derive(Deserialize)]
pub struct Opened {
    pub session: Session,
}

impl std::fmt::Debug for DataPlanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataPlanes").finish_non_exhaustive()
    }
}

impl DataPlanes {
    /// # Errors
    ///
    /// No HTTP client can be made.
    pub fn new() -> Result<Self, ClientError> {
        // Only sandboxes are asked, each at an address of its own.
        let client = Client::new("http://localhost", "", None)?;
        let [terminals, uploads] = [TERMINALS, UPLOADS].map(|(of_team, all)| Shares::new(of_team, all));
        Ok(Self { client, terminals, uploads })
    }

    /// The one that this session opens.
    pub fn of(&self, session: &Session) -> DataPlane {
        self.client.data_plane(session)
    }
}

/// That a sandbox refuses something, or does not respond.
pub fn refused(error: ClientError) -> Problem {
    match error {
        // 401 would say that nobody is signed in here.
        ClientError::Refused { status: 401, message, .. } => Problem::new(StatusCode::BAD_REQUEST, message),
        ClientError::Refused { status, message, .. } => {
            Problem::new(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), message)
        }
        ClientError::Unreachable { .. } => Problem::new(
            StatusCode::BAD_GATEWAY,
            "The sandbox's data plane does not respond; try again in a few seconds",
        ),
        error => Problem::new(StatusCode::BAD_GATEWAY, error.to_string()),
    }
}
