//! Checkpoints, volumes and versions of templates that nobody uses.
//!
//! | what | is in use while |
//! |---|---|
//! | a checkpoint | a sandbox that started from it is there, or the team builds a version from one |
//! | a volume | a sandbox that mounts it is there, live or stopped; a request for its files is a use, too |
//! | a version | it has a tag, or is its template's newest; or a sandbox, a checkpoint or a build needs it |

use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::ids::VersionId;

use super::{AT_A_TIME, expiry, write_down};
use crate::orchestration::{build, checkpoint, volume};
use crate::plan::{Plan, PlanLimits};
use crate::state::App;
use crate::store::kept::{Kind, Thing};
use crate::store::templates::Removal;

/// One round over all that there are.
pub(super) async fn round(app: &App) -> Result<(), StoreError> {
    for kind in Kind::ALL {
        let days = |plan: Plan| days(kind, app.settings.plans.of(plan));
        let plans: Vec<_> = Plan::ALL.into_iter().filter(|plan| days(*plan) > 0).collect();
        let things = app.store.kept.things(kind, &plans).await?;
        let now = app.clock.now();
        app.store.kept.note_use(kind, &things, now).await?;
        let (mut announced, mut over) = (Vec::new(), Vec::new());
        for thing in &things {
            let days = if thing.is_of_disabled { 0 } else { days(thing.plan) };
            let expires_at = expiry(thing.unused_since(), thing.expires_at, days, now);
            if expires_at != thing.expires_at {
                announced.push((thing.id.as_str(), expires_at));
            } else if expires_at.is_some_and(|end| end <= now) {
                over.push(thing);
            }
        }
        app.store.kept.announce(kind, &announced).await?;
        for thing in over.into_iter().take(AT_A_TIME) {
            if let Err(error) = expire(app, kind, thing).await {
                let reason = error.message();
                tracing::warn!(id = thing.id, reason, "not deleted at the end of its days; trying again");
            }
        }
    }
    Ok(())
}

fn days(kind: Kind, limits: &PlanLimits) -> u32 {
    match kind {
        Kind::Checkpoint => limits.checkpoint_days,
        Kind::Volume => limits.volume_days,
        Kind::TemplateVersion => limits.template_version_days,
    }
}

/// Deletes a thing, unless somebody has used it meanwhile.
async fn expire(app: &App, kind: Kind, thing: &Thing) -> Result<(), ApiError> {
    if app.store.kept.thing(kind, &thing.id).await?.as_ref() != Some(thing) {
        return Ok(());
    }
    let (team, id) = (&thing.team_id, thing.id.as_str());
    let action = match kind {
        Kind::Checkpoint => {
            let Some(row) = app.store.checkpoints.get(team, id).await? else { return Ok(()) };
            checkpoint::remove(app, &row).await?;
            "DELETE /v1/checkpoints/{id}"
        }
        Kind::Volume => {
            let Some(row) = app.store.volumes.get(team, id).await? else { return Ok(()) };
            volume::remove(app, &row).await?;
            "DELETE /v1/volumes/{id}"
        }
        Kind::TemplateVersion => {
            let id = VersionId::from(id);
            let Some(row) = app.store.templates.version_by_id(&id).await? else { return Ok(()) };
            match app.store.templates.delete_version(&id, row.number, app.clock.now()).await? {
                Removal::Removed(()) => build::remove(app, [id]),
                // Somebody began to use it a moment ago.
                Removal::InUse(..) => return Ok(()),
            }
            "DELETE /v1/templates/{slug}/versions/{version}"
        }
    };
    tracing::info!(id, "deleted at the end of the days that its team's plan keeps it");
    write_down(app, team, action, id).await;
    Ok(())
}
