//! Tokens that are the same for as long as their sandbox is there: made from its id whenever they are asked for, stored nowhere.
//!
//! The E2B SDKs get an access token once, sign URLs with it, and hand both on; through a pause and a resume it must not change.
//! So it has no end of its own and no holder: it ends with the sandbox, whose id is never given to another, or with the
//! host's session key. Sessions of our own API expire instead, and end with the API key that asked for them.
//!
//! The *traffic token* opens ports and nothing else, so that it can be given to who visits a web server.

use crate::session::{Sessions, TOKEN_PREFIX, payload};

/// What every traffic token begins with.
pub(super) const TRAFFIC_PREFIX: &str = "sptt1_";

impl Sessions {
    /// The access token of `sandbox_id` that has no end.
    pub fn lasting(&self, sandbox_id: &str) -> String {
        self.seal(TOKEN_PREFIX, payload(i64::MAX, sandbox_id))
    }

    /// The traffic token of `sandbox_id`.
    pub fn traffic(&self, sandbox_id: &str) -> String {
        self.seal(TRAFFIC_PREFIX, sandbox_id.as_bytes().to_vec())
    }

    /// Whether `token` is the traffic token of `sandbox_id`.
    pub(super) fn is_traffic_token(&self, token: &str, sandbox_id: &str) -> bool {
        self.open_token(TRAFFIC_PREFIX, token).is_some_and(|id| id == sandbox_id.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionError;
    use std::time::Duration;

    #[test]
    fn lasting_tokens_stay_the_same_and_open_their_own_sandbox_only() {
        let key = [7; 32];
        let (sessions, later) = (Sessions::new(&key, Duration::from_secs(1)), Sessions::new(&key, Duration::ZERO));
        let token = sessions.lasting("sbxaaa");

        assert_eq!(token, later.lasting("sbxaaa"));
        assert_eq!(later.verify(&token, "sbxaaa"), Ok(()));
        assert_eq!(later.verify(&token, "sbxbbb"), Err(SessionError::Foreign));
    }

    #[test]
    fn a_traffic_token_is_no_access_token_nor_the_other_way_round() {
        let sessions = Sessions::new(&[7; 32], Duration::from_secs(1));
        let (access, traffic) = (sessions.lasting("sbxaaa"), sessions.traffic("sbxaaa"));

        assert!(sessions.is_traffic_token(&traffic, "sbxaaa"));
        assert!(!sessions.is_traffic_token(&traffic, "sbxbbb"));
        assert!(!sessions.is_traffic_token(&access, "sbxaaa"));
        assert_eq!(sessions.verify(&traffic, "sbxaaa"), Err(SessionError::Malformed));
        let disguised = traffic.replace(TRAFFIC_PREFIX, TOKEN_PREFIX);
        assert_eq!(sessions.verify(&disguised, "sbxaaa"), Err(SessionError::Malformed));
    }
}
