//! Errors of the sandbox side, in the words of its tenants.

use axum::http::StatusCode;
use sandpiper_http::error::ApiError;

use crate::plan::PlanLimits;
use crate::quota::{Amounts, QuotaBody};
use crate::store::checkpoints::CreateCheckpointError;
use crate::store::templates::versions::{CreateVersionError, MOST_TAGS, VersionUse};
use crate::store::templates::{CreateTemplateError, TemplateRow};
use crate::store::usage::{QuotaError, Usage};
use crate::store::volumes::{CreateVolumeError, VolumeRow};
use crate::store::webhooks::CreateWebhookError;
use crate::store::webhooks::deliveries::DeliveryError;

/// 404 on a sandbox.
pub fn no_sandbox(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no sandbox {id}"))
}

/// 404 on a checkpoint.
pub fn no_checkpoint(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no checkpoint {id}"))
}

/// 429 on what a team does as often at a time as it may.
pub fn too_many(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message).retry_after(5)
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
            over_quota("volume_quota_exceeded", message, QuotaBody::new(limits, usage, Amounts::of_volume(size_gib)))
        }
        CreateVolumeError::StorageFull(usage) => {
            storage_full("volume_quota_exceeded", QuotaBody::new(limits, usage, Amounts::of_volume(size_gib)))
        }
        CreateVolumeError::ClaimLost => ApiError::idempotency_in_progress(),
        CreateVolumeError::Store(error) => error.into(),
    }
}

/// 404 on a webhook.
pub fn no_webhook(id: &str) -> ApiError {
    ApiError::not_found(format!("There is no webhook {id}; GET /v1/webhooks lists the team's"))
}

/// Why there is no new webhook.
pub fn no_new_webhook(error: CreateWebhookError, limits: &PlanLimits) -> ApiError {
    match error {
        CreateWebhookError::OverQuota(usage) => {
            let message = "The team's quota has no room for another webhook; delete one, or ask for a larger plan";
            over_quota("webhook_quota_exceeded", message, QuotaBody::new(limits, usage, Amounts::of_webhook()))
        }
        CreateWebhookError::Store(error) => error.into(),
    }
}

/// Why nothing was sent to this webhook.
pub fn not_delivered(error: DeliveryError, webhook: &str, delivery: &str) -> ApiError {
    match error {
        DeliveryError::NoWebhook => no_webhook(webhook),
        DeliveryError::NotFound => no_delivery(webhook, delivery),
        DeliveryError::NotOver(state) => ApiError::invalid_state(format!(
            "The delivery {delivery} is {}: it can be repeated once it has ended",
            state.as_str()
        )),
        DeliveryError::Disabled => {
            ApiError::invalid_state(format!("The webhook {webhook} is disabled; enable it first"))
        }
        DeliveryError::TooMany { retry_after_seconds } => {
            let message = format!("{error}; try again in {retry_after_seconds} s");
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message).retry_after(retry_after_seconds)
        }
        DeliveryError::Store(error) => error.into(),
    }
}

/// 404 on a delivery.
pub fn no_delivery(webhook: &str, id: &str) -> ApiError {
    ApiError::not_found(format!("There is no delivery {id} to {webhook}; they are deleted some time after their end"))
}

/// 404 on a template.
pub fn no_template(name: &str) -> ApiError {
    ApiError::not_found(format!("There is no template {name}"))
}

/// 404 on a version of a template.
pub fn no_version(template: &str, reference: &str) -> ApiError {
    ApiError::not_found(format!(
        "The template {template} has no version {reference:?}; GET /v1/templates/{template}/versions lists them"
    ))
}

/// 404 on a file that was sent for builds.
pub fn no_upload(id: &str) -> ApiError {
    ApiError::not_found(format!(
        "There is no file {id:?}; PUT /v1/templates/uploads takes files, and keeps them for a day"
    ))
}

/// 403 on what only a template's team may do.
pub fn not_owner(template: &TemplateRow) -> ApiError {
    let message = format!("The template {} is not the team's own; it can be used, and not changed", template.slug);
    ApiError::new(StatusCode::FORBIDDEN, "not_owner", message)
}

/// 409 on a version that is needed.
pub fn version_in_use(template: &TemplateRow, number: u32, used: &VersionUse) -> ApiError {
    let message = format!("{}:{number} is still needed: {used}", template.slug);
    ApiError::new(StatusCode::CONFLICT, "template_in_use", message)
}

/// Why there is no template of this slug.
pub fn no_new_template(error: CreateTemplateError, slug: &str, limits: &PlanLimits) -> ApiError {
    match error {
        CreateTemplateError::SlugTaken => ApiError::conflict(format!(
            "The team has a template with the slug {slug:?}; build a version of it, or choose another slug"
        )),
        CreateTemplateError::OverQuota(usage) => {
            let message = "The team's quota has no room for another template; delete one, or ask for a larger plan";
            over_quota("template_quota_exceeded", message, QuotaBody::new(limits, usage, Amounts::of_template()))
        }
        CreateTemplateError::ClaimLost => ApiError::idempotency_in_progress(),
        CreateTemplateError::Store(error) => error.into(),
    }
}

/// Why a version of a template is not built.
pub fn not_queued(error: CreateVersionError, template: &TemplateRow, limits: &PlanLimits) -> ApiError {
    match error {
        CreateVersionError::NoTemplate => no_template(&template.slug),
        CreateVersionError::OverQuota(usage) => {
            let message = "The team's builds have taken all their minutes of 30 days, or those that are under way may yet do; \
                           wait for these, or ask for a larger plan";
            over_quota("template_quota_exceeded", message, QuotaBody::new(limits, usage, Amounts::of_build()))
        }
        CreateVersionError::StorageFull(usage) => {
            storage_full("template_quota_exceeded", QuotaBody::new(limits, usage, Amounts::of_build()))
        }
        CreateVersionError::TooManyUnderWay => {
            let message = "Too many of the team's builds are under way; wait for some of them, or cancel them";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_builds", message).retry_after(10)
        }
        CreateVersionError::TooManyTags => too_many_tags(),
        CreateVersionError::ClaimLost => ApiError::idempotency_in_progress(),
        CreateVersionError::Store(error) => error.into(),
    }
}

/// 400 on tags of which a template would have too many.
pub fn too_many_tags() -> ApiError {
    let reason = format!("are too many: a template has {MOST_TAGS} at most; remove some first");
    ApiError::invalid_field("tags", reason)
}

/// 403 on what the team's plan does not include.
pub fn plan_required(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "plan_required", message)
}

/// 422 on what the team's quota has no room for, in a word and in words.
fn over_quota(code: &'static str, message: &str, quota: QuotaBody) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message).with_quota(quota)
}

/// 422 on anything new of a team that stores all that it may.
fn storage_full(code: &'static str, quota: QuotaBody) -> ApiError {
    let message = format!(
        "The team stores the {} GiB that its plan allows, or would; delete sandboxes, checkpoints, volumes, versions of templates \
         or files for builds, or ask for a larger plan",
        quota.limits.stored_gib
    );
    over_quota(code, &message, quota)
}

/// 422 where a team has more stopped sandboxes than it may, or would have.
fn too_many_stopped(code: &'static str, quota: QuotaBody) -> ApiError {
    let message = format!(
        "The team's plan allows {} stopped sandboxes; delete some or resume them, or ask for a larger plan",
        quota.limits.stopped
    );
    over_quota(code, &message, quota)
}

/// 422 on a file for builds of so many bytes, as far as they are known.
pub fn no_room_for_upload(limits: &PlanLimits, usage: Usage, bytes: Option<u64>) -> ApiError {
    let asked = Amounts::of_upload(bytes.unwrap_or_default());
    storage_full("template_quota_exceeded", QuotaBody::new(limits, usage, asked))
}

/// 422 on a create, fork or resume request over the team's quota.
pub fn quota_exceeded(quota: QuotaBody) -> ApiError {
    let message = "The team's sandbox quota has no room for this; pause or delete a sandbox, or ask for a larger plan";
    over_quota("sandbox_quota_exceeded", message, quota)
}

/// Why a team of these limits does not get `count` sandboxes of this size.
pub fn no_capacity(error: QuotaError, limits: &PlanLimits, count: u32, cpu: u32, memory_mb: u32) -> ApiError {
    not_admitted(error, limits, Amounts::of_sandboxes(count, cpu, memory_mb))
}

/// Why a sandbox of a team of these limits is not stopped.
pub fn not_stopped(error: QuotaError, limits: &PlanLimits) -> ApiError {
    not_admitted(error, limits, Amounts::of_stop())
}

fn not_admitted(error: QuotaError, limits: &PlanLimits, asked: Amounts) -> ApiError {
    match error {
        QuotaError::OverQuota(usage) => quota_exceeded(QuotaBody::new(limits, usage, asked)),
        QuotaError::StorageFull(usage) => storage_full("sandbox_quota_exceeded", QuotaBody::new(limits, usage, asked)),
        QuotaError::TooManyStopped(usage) => {
            too_many_stopped("sandbox_quota_exceeded", QuotaBody::new(limits, usage, asked))
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
pub fn not_checkpointed(error: CreateCheckpointError, name: &str, limits: &PlanLimits) -> ApiError {
    let quota = |usage| QuotaBody::new(limits, usage, Amounts::of_checkpoint());
    let code = "checkpoint_quota_exceeded";
    match error {
        CreateCheckpointError::OverQuota(usage) => {
            let message = "The team's quota has no room for another checkpoint; delete one, or ask for a larger plan";
            over_quota(code, message, quota(usage))
        }
        CreateCheckpointError::StorageFull(usage) => storage_full(code, quota(usage)),
        CreateCheckpointError::TooManyStopped(usage) => too_many_stopped(code, quota(usage)),
        CreateCheckpointError::NameTaken => ApiError::conflict(format!(
            "The team has a checkpoint with the name {name:?}; choose another, or delete that one"
        )),
        CreateCheckpointError::ClaimLost => ApiError::idempotency_in_progress(),
        CreateCheckpointError::Store(error) => error.into(),
    }
}
