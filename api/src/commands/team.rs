//! `sandpiper-api team …`

use anyhow::{bail, ensure};
use jiff::Timestamp;
use sandpiper_accounts::membership::TOKEN;
use sandpiper_accounts::{Email, Role};
use sandpiper_http::keys;
use serde_json::json;

use super::audit;
use crate::plan::Plan;
use crate::store::Store;
use crate::store::members::NewInvitation;
use crate::store::teams::{Disabled, REASON_RULE, SLUG_RULE, is_reason, is_slug};

/// Prints all teams.
pub async fn list(store: &Store, as_json: bool) -> anyhow::Result<()> {
    let teams = store.teams.all().await?;
    if as_json {
        let teams: Vec<_> = teams
            .iter()
            .map(|team| {
                let disabled = team.disabled.as_ref();
                let disabled = disabled.map(|Disabled { at, reason }| json!({"at": at, "reason": reason}));
                json!({"id": team.id, "slug": team.slug, "plan": team.plan, "is_personal": team.personal_of.is_some(),
                       "disabled": disabled, "created_at": team.created_at})
            })
            .collect();
        println!("{}", json!({ "teams": teams }));
        return Ok(());
    }
    println!("{:<27} {:<41} {:<11} {:<8} CREATED", "ID", "SLUG", "PLAN", "DISABLED");
    for team in teams {
        let (id, plan) = (team.id.as_str(), team.plan.to_string());
        let disabled = if team.disabled.is_some() { "yes" } else { "-" };
        println!("{id:<27} {:<41} {plan:<11} {disabled:<8} {}", team.slug, team.created_at);
    }
    Ok(())
}

/// Gives a team another plan.
pub async fn set_plan(store: &Store, slug: &str, plan: Plan) -> anyhow::Result<()> {
    ensure!(store.teams.set_plan(slug, plan).await?, "{}", no_team(slug));
    audit::write(&store.audit, "team set-plan", Some(slug)).await?;
    eprintln!("{slug} is on the plan {plan} from now on.");
    Ok(())
}

/// Disables a team.
pub async fn disable(store: &Store, slug: &str, reason: &str) -> anyhow::Result<()> {
    ensure!(is_reason(reason), "A reason {REASON_RULE}");
    ensure!(store.teams.disable(slug, reason, Timestamp::now()).await?, "{}", no_team(slug));
    audit::write(&store.audit, "team disable", Some(slug)).await?;
    eprintln!(
        "{slug} is disabled from now on. What runs of it is paused within seconds, while `sandpiper-api serve` is up."
    );
    Ok(())
}

/// Enables a team.
pub async fn enable(store: &Store, slug: &str) -> anyhow::Result<()> {
    ensure!(store.teams.enable(slug).await?, "{}", no_team(slug));
    audit::write(&store.audit, "team enable", Some(slug)).await?;
    eprintln!("{slug} is enabled. Its sandboxes stay paused until they are resumed.");
    Ok(())
}

fn no_team(slug: &str) -> String {
    format!("There is no team {slug}; `sandpiper-api team ls` lists them")
}

/// Makes an invitation and prints its token; makes the team if there is none.
pub async fn invite(store: &Store, slug: &str, role: Role, email: Option<&Email>, plan: Plan) -> anyhow::Result<()> {
    ensure!(is_slug(slug), "A team's slug {SLUG_RULE}: not {slug:?}");
    let now = Timestamp::now();
    let team = store.teams.ensure(slug, plan, now).await?;
    let token = keys::generate(TOKEN);
    let Some(hash) = keys::hash(TOKEN, &token) else { bail!("A new token does not have the form of one") };
    let new = NewInvitation { role, email, invited_by: None, hash: &hash };
    let invitation = store.members.invite(&team.id, &new, now).await?;
    audit::write(&store.audit, "team invite", Some(&invitation.id)).await?;
    println!("{}", *token);
    eprintln!(
        "Whoever accepts this until {} becomes {role} of {slug}: POST /v1/invitations/accept. It is not shown again.",
        invitation.expires_at
    );
    Ok(())
}
