//! What lets a request pass, and what grows out of it go on.
//!
//! An upload, a streamed answer or a tunnel may last for days. Meanwhile its token expires, its port is closed or made
//! private, its sandbox is deleted. So each of them asks again, once a second, what was asked of the request at first,
//! and ends when it would be refused now. The question is asked by whoever moves the bytes: there is no task and no table
//! of what is open, and what is over within a second asks nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::credentials::{Credentials, Denied};
use super::refusal::Refusal;
use super::route::Door;
use super::{Directory, Target};
use crate::session::Sessions;

/// How long something may go on that would be refused.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// Ready when the request would be refused now.
pub(super) type Revoked = Pin<Box<dyn Future<Output = Refusal> + Send>>;

/// Whom a request is for, and what it shows to be let in.
pub(super) struct Grant<D> {
    pub(super) directory: Arc<D>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) route_token: String,
    pub(super) door: Door,
    /// A question that anyone may ask.
    pub(super) is_health: bool,
    pub(super) credentials: Credentials,
}

impl<D: Directory> Grant<D> {
    /// The sandbox as it is now, if the request may pass.
    pub(super) async fn check(&self) -> Result<Target, Refusal> {
        let target = self.directory.find(&self.route_token).await.ok_or(Refusal::SandboxNotFound)?;
        if self.needs_token(&target)? {
            self.check_token(&target).map_err(Refusal::Unauthorized)?;
        }
        Ok(target)
    }

    /// Whether a request that may pass may also wake the sandbox: a question that anyone may ask wakes nobody.
    pub(super) fn may_wake(&self, target: &Target) -> bool {
        !self.is_health || self.check_token(target).is_ok()
    }

    /// Watches over what is about to begin.
    pub(super) fn watch(self: &Arc<Self>) -> Revoked {
        let grant = Arc::clone(self);
        Box::pin(async move {
            loop {
                sleep(RECHECK).await;
                if let Err(refusal) = grant.check().await {
                    return refusal;
                }
            }
        })
    }

    fn check_token(&self, target: &Target) -> Result<(), Denied> {
        self.credentials.check(&self.sessions, &target.sandbox_id)
    }

    /// Whether this request needs the sandbox's token; an error where the port is not exposed at all.
    fn needs_token(&self, target: &Target) -> Result<bool, Refusal> {
        match self.door {
            Door::DataPlane => Ok(!self.is_health),
            Door::Port(port) => {
                let exposed = target.exposed_ports.iter().find(|exposed| exposed.port == port);
                let exposed = exposed.ok_or(Refusal::PortNotExposed(port))?;
                Ok(!(exposed.public && target.allow_public_traffic))
            }
        }
    }
}
