//! What holds of members and invitations, whatever one is a member of: a team, or a realm of a merchant.

use std::collections::HashMap;

use jiff::SignedDuration;
use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;

use crate::role::Role;
use crate::users::UserId;

/// What tokens of invitations begin with.
pub const TOKEN: &str = "spi_";
/// What ids of invitations begin with.
pub const INVITATION: &str = "inv";
/// How long an invitation can be accepted.
pub const INVITATION_LASTS: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What became of a change of a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// There is no such member.
    NoMember,
    /// It would leave nobody who is an owner.
    LastOwner,
    /// Who asks may not do that, at least not any more.
    Forbidden,
}

/// Whether, among these members, `actor` may give `user` another role, or take the membership away: [`Changed::Done`] if so. And whether
/// `user` may do less from then on.
///
/// Admins have to do with members, owners also with owners; everybody may leave; the last owner stays one.
pub fn may_change(
    members: &HashMap<String, Role>,
    actor: &UserId,
    user: &UserId,
    role: Option<Role>,
) -> (Changed, bool) {
    let Some(before) = members.get(user.as_str()).copied() else { return (Changed::NoMember, false) };
    let may_less = role.is_none_or(|role| role < before);
    let leaves = actor == user && role.is_none();
    let needed = if role.max(Some(before)) == Some(Role::Owner) { Role::Owner } else { Role::Admin };
    if !leaves && members.get(actor.as_str()).copied() < Some(needed) {
        return (Changed::Forbidden, may_less);
    }
    let others = members.iter().filter(|(other, _)| other.as_str() != user.as_str());
    let has_another = others.into_iter().any(|(_, role)| *role == Role::Owner);
    if before == Role::Owner && role != Some(Role::Owner) && !has_another {
        return (Changed::LastOwner, may_less);
    }
    (Changed::Done, may_less)
}

/// Why an invitation was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    #[error("There is no such invitation any more")]
    Gone,
    #[error("The invitation is for another address")]
    ForAnother,
    #[error("There is a user with this address")]
    UserExists,
    #[error("Already a member")]
    IsMember,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for AcceptError {
    fn from(error: sqlx::Error) -> Self {
        AcceptError::Store(error.into())
    }
}

/// 404 on an invitation.
pub fn gone() -> ApiError {
    ApiError::not_found("There is no such invitation: it was accepted, withdrawn, or is over; ask for another")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_change_whom() {
        let [ann, bob, cid, eve] = ["ann", "bob", "cid", "eve"].map(UserId::from);
        let roles = [(&ann, Role::Owner), (&bob, Role::Admin), (&cid, Role::Viewer)];
        let members: HashMap<_, _> = roles.map(|(user, role)| (user.to_string(), role)).into();
        for (actor, user, role, expected) in [
            (&ann, &bob, Some(Role::Owner), (Changed::Done, false)),
            (&ann, &ann, None, (Changed::LastOwner, true)),
            (&ann, &ann, Some(Role::Admin), (Changed::LastOwner, true)),
            (&bob, &cid, Some(Role::Admin), (Changed::Done, false)),
            (&bob, &cid, None, (Changed::Done, true)),
            (&bob, &cid, Some(Role::Owner), (Changed::Forbidden, false)),
            (&bob, &ann, None, (Changed::Forbidden, true)),
            (&cid, &cid, None, (Changed::Done, true)),
            (&cid, &cid, Some(Role::Admin), (Changed::Forbidden, false)),
            (&eve, &cid, None, (Changed::Forbidden, true)),
            (&ann, &eve, None, (Changed::NoMember, false)),
        ] {
            assert_eq!(may_change(&members, actor, user, role), expected, "{actor} {user} {role:?}");
        }
    }
}
