//! Errors of the sandbox side, in the words of its tenants.

use axum::http::StatusCode;
use sandpiper_http::error::ApiError;

use crate::plan::PlanLimits;
use crate::quota::QuotaBody;
use crate::store::checkpoints::CreateCheckpointError;
use crate::store::sandboxes::QuotaError;

/// 404 on a sandbox.
pub fn no_sandbox(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no sandbox {id}"))
}

/// 404 on a checkpoint.
pub fn no_checkpoint(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no checkpoint {id}"))
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
        QuotaError::OverQuota(usage) => quota_exceeded(&QuotaBody::new(limits, usage, count, cpu, memory_mb)),
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
