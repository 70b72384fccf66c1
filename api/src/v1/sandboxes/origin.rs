//! What a new sandbox starts from: a version of a template, or a checkpoint.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::{agent, id};

use super::validate::{self, Problems, Start};
use crate::auth::Caller;
use crate::plan::PlanLimits;
use crate::state::App;
use crate::store::checkpoints::{CheckpointRow, State};
use crate::store::templates::TemplateRow;
use crate::store::templates::versions::VersionRow;
use crate::v1::templates::reference::{Found, fresh, look_up};

/// Where a new sandbox comes from.
#[derive(Debug)]
pub struct Origin {
    /// Slug of the template.
    pub template: String,
    /// Id of the version.
    pub template_version: String,
    pub checkpoint: Option<CheckpointRow>,
    baseline: agent::RuntimeBaseline,
    /// Of the version's file system.
    least_disk_gib: u32,
}

impl Origin {
    /// Looks up what the request names, or 404.
    pub async fn find(app: &App, caller: &Caller, start: &Start) -> Result<Self, ApiError> {
        match start {
            Start::Template(reference) => Self::by_reference(app, caller, reference).await,
            Start::Snapshot(id) => match checkpoint(app, caller, id).await? {
                Some(checkpoint) => Self::of_checkpoint(checkpoint),
                None => Err(ApiError::not_found(format!(
                    "There is no snapshot {id:?}; GET /v1/checkpoints lists the team's"
                ))),
            },
        }
    }

    /// CPU and memory. As asked where the plan allows it, else those of the template or checkpoint; a checkpoint with memory
    /// leaves no choice, for what runs in it knows both.
    pub fn size(&self, asked: (Option<u32>, Option<u32>), limits: &PlanLimits) -> Result<(u32, u32), ApiError> {
        let Some(checkpoint) = self.checkpoint.as_ref().filter(|checkpoint| checkpoint.memory) else {
            return validate::size(asked, self.baseline, limits);
        };
        let mut problems = Problems::default();
        for (field, asked, own) in [("cpu", asked.0, checkpoint.cpu), ("memory_mb", asked.1, checkpoint.memory_mb)] {
            if asked.is_some_and(|asked| asked != own) {
                problems
                    .add(field, format!("is {own} in {}, which goes on with its memory; leave it out", checkpoint.id));
            }
        }
        problems.into_result()?;
        Ok((checkpoint.cpu, checkpoint.memory_mb))
    }

    /// The root disk: the plan's, and never smaller than the version's or the checkpoint's.
    pub fn disk_gib(&self, limits: &PlanLimits) -> u32 {
        match &self.checkpoint {
            None => limits.root_disk_gib.max(self.least_disk_gib),
            Some(checkpoint) if checkpoint.memory => checkpoint.disk_gib,
            Some(checkpoint) => checkpoint.disk_gib.max(limits.root_disk_gib),
        }
    }

    /// The newest version of a slug, a pinned one, or else a checkpoint. A miss asks the agent, which may have got the
    /// template a moment ago.
    async fn by_reference(app: &App, caller: &Caller, text: &str) -> Result<Self, ApiError> {
        let team = &caller.team.id;
        if let Found::Version(template, version) = look_up(app, team, text).await? {
            return Ok(Self::of_template(&template, version, team));
        }
        if let Some(checkpoint) = checkpoint(app, caller, text).await? {
            return Self::of_checkpoint(checkpoint);
        }
        let (template, version) = fresh(app, team, text).await?;
        Ok(Self::of_template(&template, version, team))
    }

    fn of_template(template: &TemplateRow, version: VersionRow, team: &TeamId) -> Self {
        Self {
            template: template.name_for(team),
            template_version: version.id.to_string(),
            checkpoint: None,
            baseline: version.baseline,
            least_disk_gib: version.disk_gib,
        }
    }

    fn of_checkpoint(checkpoint: CheckpointRow) -> Result<Self, ApiError> {
        let id = &checkpoint.id;
        match checkpoint.state {
            State::Ready => Ok(Self {
                template: checkpoint.template.clone(),
                template_version: checkpoint.template_version.clone(),
                baseline: agent::RuntimeBaseline { cpu: checkpoint.cpu, memory_mb: checkpoint.memory_mb },
                checkpoint: Some(checkpoint),
                least_disk_gib: 0,
            }),
            State::Creating => {
                Err(ApiError::invalid_state(format!("{id} is still being taken; try again in a moment")))
            }
            State::Failed | State::Deleted => {
                Err(ApiError::invalid_state(format!("{id} was lost by its host; nothing can be started from it")))
            }
        }
    }
}

/// The caller's team's checkpoint of this id.
async fn checkpoint(app: &App, caller: &Caller, id: &str) -> Result<Option<CheckpointRow>, ApiError> {
    if !id::is_valid("ckp", id) {
        return Ok(None);
    }
    Ok(app.store.checkpoints.get(&caller.team.id, id).await?)
}
