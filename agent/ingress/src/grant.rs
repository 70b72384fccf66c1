//! What lets a request pass, and what grows out of it go on.
//!
//! An upload, a streamed response or a tunnel may last for days. Meanwhile its token expires, its port is closed or made
//! private, its sandbox is deleted, its team is disabled. So each of them asks again, once a second, what was asked of the request at first,
//! and ends when it would be refused now. The question is asked by whoever moves the bytes: there is no task and no table
//! of what is open, and what is over within a second asks nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::credentials::{Credentials, Denied, TrafficDenied};
use super::refusal::Refusal;
use super::route::Door;
use super::signed::SignedUrl;
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
    /// For files alone.
    pub(super) signed: Option<SignedUrl>,
}

/// What a request must show.
enum Needed {
    Nothing,
    AccessToken,
    TrafficToken,
}

impl<D: Directory> Grant<D> {
    /// The sandbox as it is now, if the request may pass.
    pub(super) async fn check(&self) -> Result<Target, Refusal> {
        let target = self.directory.find(&self.route_token).await.ok_or(Refusal::SandboxNotFound)?;
        match self.needed(&target)? {
            Needed::Nothing => {}
            Needed::AccessToken => self.check_token(&target).map_err(Refusal::Unauthorized)?,
            Needed::TrafficToken => self.check_traffic(&target).map_err(Refusal::NoTraffic)?,
        }
        // Last: whoever shows no token where one is needed learns nothing of the team.
        if target.team_disabled {
            return Err(Refusal::TeamDisabled);
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
        match (self.credentials.check(&self.sessions, &target.sandbox_id), &self.signed) {
            (Err(Denied::Missing), Some(signed)) => signed.check(&self.sessions, &target.sandbox_id),
            (checked, _) => checked,
        }
    }

    /// Who may use all of the sandbox may use its ports.
    fn check_traffic(&self, target: &Target) -> Result<(), TrafficDenied> {
        match self.credentials.check(&self.sessions, &target.sandbox_id) {
            Ok(()) => Ok(()),
            Err(_) => self.credentials.check_traffic(&self.sessions, &target.sandbox_id),
        }
    }

    /// What this request must show; an error where the port is not exposed at all.
    fn needed(&self, target: &Target) -> Result<Needed, Refusal> {
        let Door::Port(port) = self.door else {
            return Ok(if self.is_health { Needed::Nothing } else { Needed::AccessToken });
        };
        match target.exposed_ports.iter().find(|exposed| exposed.port == port) {
            Some(exposed) if exposed.public && target.allow_public_traffic => Ok(Needed::Nothing),
            Some(_) => Ok(Needed::AccessToken),
            None if !target.previews.all_ports => Err(Refusal::PortNotExposed(port)),
            None if target.allow_public_traffic => Ok(Needed::Nothing),
            None => Ok(Needed::TrafficToken),
        }
    }
}
