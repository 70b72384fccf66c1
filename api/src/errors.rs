//! Errors of the sandbox side, in the words of its tenants.

use axum::http::StatusCode;
use sandpiper_http::error::ApiError;

use crate::plan::PlanLimits;
use crate::quota::{Amounts, QuotaBody};
use crate::store::checkpoints::CreateCheckpointError;
use crate::store::sandboxes::QuotaError;
use crate::store::volumes::{CreateVolumeError, VolumeRow};

/// 404 on a sandbox.
pub fn no_sandbox(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no sandbox {id}"))
}

/// 404 on a checkpoint.
pub fn no_checkpoint(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no checkpoint {id}"))
}

/// 404 on a volume.
pub fn no_volume(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no volume {id}"))
}

/// 422 on a volume that a new sandbox is to mount.
pub fn unknown_volume(name: &str) -> ApiError {
    let message = format!("There is no volume {name:?} that can be mounted; GET /v1/volumes lists the team's");
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_volume", message)
}

/// 409 on what cannot be done while a sandbox has a volume.
pub fn volume_attached(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "volume_attached", message)
}

/// 409 on what is not done yet with a volume.
pub fn volume_busy(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "volume_busy", message).retry_after(1)
}

/// 409 on what cannot be done while a sandbox has the volume of `row`.
///
/// # Errors
///
/// 409, if one has it.
pub fn check_detached(row: &VolumeRow) -> Result<(), ApiError> {
    let Some(sandbox) = &row.attached_to else { return Ok(()) };
    let message = format!("The volume {:?} is attached to {sandbox}; pause or delete that sandbox first", row.name);
    Err(volume_attached(message))
}

/// Why there is no volume of this name.
pub fn not_created(error: CreateVolumeError, name: &str, limits: &PlanLimits, size_gib: u32) -> ApiError {
    match error {
        CreateVolumeError::NameTaken => ApiError::conflict(format!(
            "The team has a volume with the name {name:?}; choose another, or delete that one"
        )),
        CreateVolumeError::OverQuota(usage) => {
            let message = "The team's quota has no room for another volume; delete one, or ask for a larger plan";
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "volume_quota_exceeded", message)
                .with_quota(QuotaBody::new(limits, usage, Amounts::of_volume(size_gib)))
        }
        CreateVolumeError::ClaimLost => ApiError::idempotency_in_progress(),
        CreateVolumeError::Store(error) => error.into(),
    }
}

/// 403 on what the team's plan does not include.
pub fn plan_required(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "plan_required", message)
}

/// 422 on a create, fork or resume request over the team's quota.
pub fn quota_exceeded(quota: &QuotaBody) -> ApiError {
    let message = "The team's sandbox quota has no room for this; pause or delete a sandbox, or ask for a larger plan";
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "sandbox_quota_exceeded", message).with_quota(quota)
}

/// Why a team of these limits does not get `count` sandboxes of this size.
pub fn no_capacity(error: QuotaError, limits: &PlanLimits, count: u32, cpu: u32, memory_mb: u32) -> ApiError {
    match error {
        QuotaError::OverQuota(usage) => {
            quota_exceeded(&QuotaBody::new(limits, usage, Amounts::of_sandboxes(count, cpu, memory_mb)))
        }
        QuotaError::VolumeAttached => {
            volume_attached("A volume of this sandbox is attached to another one; GET /v1/volumes says which has it")
        }
        QuotaError::VolumeGone => ApiError::invalid_state(
            "A volume of this sandbox was deleted or lost; start another from a checkpoint of it, which has no volumes",
        ),
        // Another process works on the request.
        QuotaError::ClaimLost => ApiError::idempotency_in_progress(),
        QuotaError::Store(error) => error.into(),
    }
}

/// Why there is no checkpoint of this name.
pub fn not_checkpointed(error: CreateCheckpointError, name: &str) -> ApiError {
    match error {
        CreateCheckpointError::NameTaken => ApiError::conflict(format!(
            "The team has a checkpoint with the name {name:?}; choose another, or delete that one"
        )),
        CreateCheckpointError::ClaimLost => ApiError::idempotency_in_progress(),
        CreateCheckpointError::Store(error) => error.into(),
    }
}
