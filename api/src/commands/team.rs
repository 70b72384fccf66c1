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
use crate::store::teams::{SLUG_RULE, is_slug};

/// Prints all teams.
pub async fn list(store: &Store, as_json: bool) -> anyhow::Result<()> {
    let teams = store.teams.all().await?;
    if as_json {
        let teams: Vec<_> = teams
            .iter()
            .map(|team| {
                json!({"id": team.id, "slug": team.slug, "plan": team.plan, "is_personal": team.personal_of.is_some(),
                       "created_at": team.created_at})
            })
            .collect();
        println!("{}", json!({ "teams": teams }));
        return Ok(());
    }
    println!("{:<27} {:<41} {:<11} CREATED", "ID", "SLUG", "PLAN");
    for team in teams {
        println!("{:<27} {:<41} {:<11} {}", team.id.as_str(), team.slug, team.plan.to_string(), team.created_at);
    }
    Ok(())
}

/// Gives a team another plan.
pub async fn set_plan(store: &Store, slug: &str, plan: Plan) -> anyhow::Result<()> {
    ensure!(store.teams.set_plan(slug, plan).await?, "There is no team {slug}; `sandpiper-api team ls` lists them");
    audit::write(&store.audit, "team set-plan", Some(slug)).await?;
    eprintln!("{slug} is on the plan {plan} from now on.");
    Ok(())
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
