//! Who is a member of which team, and invitations to become one.
//!
//! A team that has members keeps an owner: what would take the last one away is refused.

use std::collections::HashMap;

use jiff::Timestamp;
use sandpiper_accounts::membership::{AcceptError, Changed, INVITATION, INVITATION_LASTS, may_change};
use sandpiper_accounts::oidc::admission::{self, Admitted};
use sandpiper_accounts::oidc::{Admission, EntryError, Person};
use sandpiper_accounts::sessions::{self, Begun};
use sandpiper_accounts::{Email, Role, User, UserId, users};
use sandpiper_db::{Database, Statement, StoreError, Tx, decode_enum, from_ms, to_ms};
use sandpiper_protocol::id;
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::teams::{self, Team, team};
use crate::plan::Plan;

/// A user in a team.
#[derive(Debug, Clone)]
pub struct Member {
    pub user_id: UserId,
    pub email: String,
    pub name: String,
    pub role: Role,
    pub since: Timestamp,
}

/// An invitation, without its token.
#[derive(Debug, Clone)]
pub struct Invitation {
    pub id: String,
    pub role: Role,
    /// The only one who may accept it.
    pub email: Option<String>,
    /// `None`: the operator.
    pub invited_by: Option<UserId>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

/// An invitation to be made.
#[derive(Debug)]
pub struct NewInvitation<'a> {
    pub role: Role,
    pub email: Option<&'a Email>,
    pub invited_by: Option<&'a UserId>,
    /// Of its token: 64 hexadecimal digits.
    pub hash: &'a str,
}

/// Someone who is not there yet, and accepts an invitation.
#[derive(Debug)]
pub struct NewUser<'a> {
    pub email: &'a Email,
    pub name: &'a str,
    /// The hash of the password.
    pub password: &'a str,
    /// Of the personal team.
    pub plan: Plan,
}

/// The memberships and invitations.
#[derive(Debug, Clone)]
pub struct Members {
    database: Database,
}

impl Members {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// The team of this slug or id, and what this user is there; `None` where that is nothing, as where there is no such team.
    pub async fn role_in(&self, user: &UserId, named: &str) -> Result<Option<(Team, Role)>, StoreError> {
        let row = sqlx::query(
            "SELECT t.*, m.role FROM memberships m JOIN teams t ON t.id = m.team_id \
             WHERE m.user_id = $1 AND (t.slug = $2 OR t.id = $2)",
        )
        .bind(user.to_string())
        .bind(named.to_owned())
        .fetch_optional(self.database.read())
        .await?;
        row.as_ref().map(team_and_role).transpose()
    }

    /// This user's personal team.
    pub async fn personal(&self, user: &UserId) -> Result<Option<(Team, Role)>, StoreError> {
        let row = sqlx::query(
            "SELECT t.*, m.role FROM memberships m JOIN teams t ON t.id = m.team_id \
             WHERE m.user_id = $1 AND t.personal_of = $1",
        )
        .bind(user.to_string())
        .fetch_optional(self.database.read())
        .await?;
        row.as_ref().map(team_and_role).transpose()
    }

    /// Likewise; founded on this plan where there is none.
    pub async fn ensure_personal(&self, user: &User, plan: Plan, now: Timestamp) -> Result<Team, StoreError> {
        if let Some((team, _)) = self.personal(&user.id).await? {
            return Ok(team);
        }
        // By one at a time: another process may be about to do the same.
        let mut tx = self.database.write().await?;
        let row = sqlx::query("SELECT * FROM teams WHERE personal_of = $1")
            .bind(user.id.to_string())
            .fetch_optional(&mut *tx)
            .await?;
        let founded = match row {
            Some(row) => team(&row)?,
            None => found_personal(&mut tx, user, plan, now).await?,
        };
        tx.commit().await?;
        Ok(founded)
    }

    /// The teams of this user, by slug.
    pub async fn teams_of(&self, user: &UserId) -> Result<Vec<(Team, Role)>, StoreError> {
        let rows = sqlx::query(
            "SELECT t.*, m.role FROM memberships m JOIN teams t ON t.id = m.team_id WHERE m.user_id = $1 ORDER BY t.slug",
        )
        .bind(user.to_string())
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(team_and_role).collect()
    }

    /// A new team with this owner; `None` when the slug is taken.
    pub async fn found(
        &self,
        owner: &UserId,
        slug: &str,
        plan: Plan,
        now: Timestamp,
    ) -> Result<Option<Team>, StoreError> {
        let mut tx = self.database.write().await?;
        let Some(team) = teams::add(&mut tx, slug, plan, None, now).await? else { return Ok(None) };
        enter(&mut tx, &team.id, owner, Role::Owner, now).await?;
        tx.commit().await?;
        Ok(Some(team))
    }

    /// Who is in a team, those who are there for longest first.
    pub async fn of(&self, team: &TeamId) -> Result<Vec<Member>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.user_id, m.role, m.created_at_ms, u.email, u.name \
             FROM memberships m JOIN users u ON u.id = m.user_id WHERE m.team_id = $1 ORDER BY m.created_at_ms, m.user_id",
        )
        .bind(team.as_str())
        .fetch_all(self.database.read())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Member {
                    user_id: row.try_get::<String, _>("user_id")?.into(),
                    email: row.try_get("email")?,
                    name: row.try_get("name")?,
                    role: decode_enum(row.try_get("role")?)?,
                    since: from_ms(row.try_get("created_at_ms")?)?,
                })
            })
            .collect()
    }

    /// Has `actor` give a member another role, or take the member out of the team; everybody may leave.
    ///
    /// What a member who may do less from then on has begun ends with it: the sessions, and the invitations, with which one could
    /// come back.
    pub async fn change(
        &self,
        team: &TeamId,
        actor: &UserId,
        user: &UserId,
        role: Option<Role>,
        now: Timestamp,
    ) -> Result<Changed, StoreError> {
        // By one at a time: what was read stays so.
        let mut tx = self.database.write().await?;
        let rows = sqlx::query("SELECT user_id, role FROM memberships WHERE team_id = $1")
            .bind(team.as_str())
            .fetch_all(&mut *tx)
            .await?;
        let mut roles: HashMap<String, Role> = HashMap::new();
        for row in &rows {
            roles.insert(row.try_get("user_id")?, decode_enum(row.try_get("role")?)?);
        }
        let (may, may_less) = may_change(&roles, actor, user, role);
        if may != Changed::Done {
            return Ok(may);
        }
        let mut change = match role {
            Some(role) => {
                let mut change = Statement::new("UPDATE memberships SET role = ");
                change.push_bind(role.as_str());
                change
            }
            None => Statement::new("DELETE FROM memberships"),
        };
        change.push(" WHERE team_id = ").push_bind(team.as_str()).push(" AND user_id = ").push_bind(user.as_str());
        change.build().execute(&mut *tx).await?;
        if may_less {
            sessions::end_all(&mut tx, user, now).await?;
            sqlx::query("DELETE FROM invitations WHERE team_id = $1 AND invited_by = $2")
                .bind(team.as_str())
                .bind(user.to_string())
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(Changed::Done)
    }

    /// Makes an invitation to a team, and forgets those that nobody can accept any more.
    pub async fn invite(
        &self,
        team: &TeamId,
        invitation: &NewInvitation<'_>,
        now: Timestamp,
    ) -> Result<Invitation, StoreError> {
        let expires_at = now.saturating_add(INVITATION_LASTS).unwrap_or(Timestamp::MAX);
        let mut tx = self.database.write_shared().await?;
        sqlx::query("DELETE FROM invitations WHERE expires_at_ms <= $1").bind(to_ms(now)).execute(&mut *tx).await?;
        let row = sqlx::query(
            "INSERT INTO invitations (id, team_id, role, email, hash, invited_by, created_at_ms, expires_at_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING *",
        )
        .bind(id::generate(INVITATION))
        .bind(team.as_str())
        .bind(invitation.role.as_str())
        .bind(invitation.email.map(Email::to_string))
        .bind(invitation.hash.to_owned())
        .bind(invitation.invited_by.map(UserId::to_string))
        .bind(to_ms(now))
        .bind(to_ms(expires_at))
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        invitation_of(&row)
    }

    /// Invitations to a team that can be accepted, newest first: at most `limit`, those before `before`.
    pub async fn invitations(
        &self,
        team: &TeamId,
        before: Option<&str>,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<Invitation>, StoreError> {
        let mut query = Statement::new("SELECT * FROM invitations WHERE expires_at_ms > ");
        query.push_bind(to_ms(now)).push(" AND team_id = ").push_bind(team.as_str());
        if let Some(before) = before {
            query.push(" AND id < ").push_bind(before);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        query.build().fetch_all(self.database.read()).await?.iter().map(invitation_of).collect()
    }

    /// Withdraws an invitation; false where there is none of this id.
    pub async fn withdraw(&self, team: &TeamId, id: &str) -> Result<bool, StoreError> {
        let mut withdrawal = Statement::new("DELETE FROM invitations WHERE id = ");
        withdrawal.push_bind(id).push(" AND team_id = ").push_bind(team.as_str());
        self.database.changes_row(withdrawal).await
    }

    /// Whether this is the token of an invitation that can be accepted.
    pub async fn is_open(&self, hash: &str, now: Timestamp) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT 1 FROM invitations WHERE hash = $1 AND expires_at_ms > $2")
            .bind(hash.to_owned())
            .bind(to_ms(now))
            .fetch_optional(self.database.read())
            .await?;
        Ok(row.is_some())
    }

    /// Makes somebody new a user with a personal team, a member as the invitation says, and signed in: all of it or nothing.
    pub async fn accept_new(
        &self,
        hash: &str,
        new: &NewUser<'_>,
        now: Timestamp,
    ) -> Result<(User, (Team, Role), Begun), AcceptError> {
        let mut tx = self.database.write().await?;
        let (team, role) = take(&mut tx, hash, new.email.as_str(), now).await?;
        let user = users::add(&mut tx, new.email, new.name, Some(new.password), now).await?;
        let user = user.ok_or(AcceptError::UserExists)?;
        found_personal(&mut tx, &user, new.plan, now).await?;
        enter(&mut tx, &team.id, &user.id, role, now).await?;
        let begun = sessions::begin(&mut tx, &user.id, now).await?;
        tx.commit().await.map_err(StoreError::from)?;
        Ok((user, (team, role), begun))
    }

    /// Makes somebody whom a provider knows a member as the invitation says, and signs them in. Somebody new becomes a user with a
    /// personal team on this plan. All of it or nothing.
    pub async fn accept_as(
        &self,
        hash: &str,
        person: &Person,
        allowed_domains: &[String],
        plan: Plan,
        now: Timestamp,
    ) -> Result<(Admitted, Begun), EntryError> {
        let admission = Admission { sign_up: true, allowed_domains };
        let mut tx = self.database.write().await?;
        let admitted = admission::admit(&mut tx, person, admission, now).await?;
        let (team, role) = take(&mut tx, hash, &admitted.user.email, now).await?;
        if admitted.is_new {
            found_personal(&mut tx, &admitted.user, plan, now).await?;
        }
        if !enter(&mut tx, &team.id, &admitted.user.id, role, now).await? {
            return Err(AcceptError::IsMember.into());
        }
        let begun = sessions::begin(&mut tx, &admitted.user.id, now).await?;
        tx.commit().await.map_err(StoreError::from)?;
        Ok((admitted, begun))
    }

    /// Makes a user a member as the invitation says.
    pub async fn accept(&self, hash: &str, user: &User, now: Timestamp) -> Result<(Team, Role), AcceptError> {
        let mut tx = self.database.write().await?;
        let (team, role) = take(&mut tx, hash, &user.email, now).await?;
        if !enter(&mut tx, &team.id, &user.id, role, now).await? {
            return Err(AcceptError::IsMember);
        }
        tx.commit().await.map_err(StoreError::from)?;
        Ok((team, role))
    }
}

/// Takes an invitation away, for one who has this address: the team and the role.
async fn take(tx: &mut Tx, hash: &str, email: &str, now: Timestamp) -> Result<(Team, Role), AcceptError> {
    let row = sqlx::query("DELETE FROM invitations WHERE hash = $1 AND expires_at_ms > $2 RETURNING *")
        .bind(hash.to_owned())
        .bind(to_ms(now))
        .fetch_optional(&mut **tx)
        .await?
        .ok_or(AcceptError::Gone)?;
    if row.try_get::<Option<String>, _>("email")?.is_some_and(|only| only != email) {
        return Err(AcceptError::ForAnother);
    }
    let team_id: String = row.try_get("team_id")?;
    let of_team = sqlx::query("SELECT * FROM teams WHERE id = $1").bind(team_id).fetch_one(&mut **tx).await?;
    Ok((team(&of_team)?, decode_enum(row.try_get("role")?)?))
}

/// Makes someone a member; false when they are one.
async fn enter(tx: &mut Tx, team: &TeamId, user: &UserId, role: Role, now: Timestamp) -> Result<bool, StoreError> {
    let entered = sqlx::query(
        "INSERT INTO memberships (team_id, user_id, role, created_at_ms) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
    )
    .bind(team.as_str())
    .bind(user.to_string())
    .bind(role.as_str())
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    Ok(entered.rows_affected() > 0)
}

/// The personal team of a new user, called like the address, with the end of the user's id where that is taken.
async fn found_personal(tx: &mut Tx, user: &User, plan: Plan, now: Timestamp) -> Result<Team, StoreError> {
    let slug = slug_of(&user.email);
    let mut team = teams::add(tx, &slug, plan, Some(&user.id), now).await?;
    if team.is_none() {
        let end = &user.id[user.id.len() - 8..];
        team = teams::add(tx, &format!("{slug}-{end}"), plan, Some(&user.id), now).await?;
    }
    let team = team.ok_or_else(|| StoreError::Corrupt { what: "a random slug, which is taken".to_owned() })?;
    enter(tx, &team.id, &user.id, Role::Owner, now).await?;
    Ok(team)
}

/// A slug like the name in an address, short enough for eight random characters more.
fn slug_of(email: &str) -> String {
    let local_part = email.split('@').next().unwrap_or_default();
    let plain = local_part.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' });
    let slug: String = plain.skip_while(|c| !c.is_ascii_lowercase()).take(31).collect();
    if slug.is_empty() { "personal".to_owned() } else { slug }
}

fn team_and_role(row: &AnyRow) -> Result<(Team, Role), StoreError> {
    Ok((team(row)?, decode_enum(row.try_get("role")?)?))
}

fn invitation_of(row: &AnyRow) -> Result<Invitation, StoreError> {
    Ok(Invitation {
        id: row.try_get("id")?,
        role: decode_enum(row.try_get("role")?)?,
        email: row.try_get("email")?,
        invited_by: row.try_get::<Option<String>, _>("invited_by")?.map(UserId::from),
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        expires_at: from_ms(row.try_get("expires_at_ms")?)?,
    })
}
