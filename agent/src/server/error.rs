//! Responses that say what went wrong.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use sandpiper_images::snapshots::DraftError;
use sandpiper_images::templates::{DeleteError, ImportError};
use sandpiper_images::volumes::DraftError as DraftRefused;
use sandpiper_protocol::agent::{ErrorBody, QUOTA_EXCEEDED, TEAM_DISABLED};
use sandpiper_protocol::error_chain;
use serde::de::DeserializeOwned;

use crate::builds::StartError as BuildStartError;
use crate::capacity::Full;
use crate::sandbox::{ChangeError, StartError};
use crate::service::{CheckpointError, CreateError, DiskSpaceError, ForkError, VolumeCreateError};
use crate::uploads::UploadError;
use crate::volumes::VolumeError;

/// An error answer.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, code, message }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_request", message: message.into() }
    }

    pub(super) fn not_found(what: &str) -> Self {
        Self { status: StatusCode::NOT_FOUND, code: "not_found", message: format!("There is no such {what}") }
    }

    pub(super) fn invalid_state(message: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, code: "invalid_state", message: message.into() }
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, code: "forbidden", message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, code: "internal", message: message.into() }
    }

    fn unavailable(message: String) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: "capacity_unavailable", message }
    }

    pub(super) fn conflict(message: String) -> Self {
        Self { status: StatusCode::CONFLICT, code: "conflict", message }
    }

    pub(super) fn guest_failed(message: String) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, code: "guest_failed", message }
    }

    fn of_start(error: &StartError, message: String) -> Self {
        match error {
            StartError::Volume(error) => Self::of_volume(error, message),
            StartError::Guest(_) => Self::guest_failed(message),
            StartError::Deleted(_) => Self::invalid_state(message),
            StartError::ShuttingDown => Self::unavailable(message),
            StartError::Host { .. } | StartError::Disk(_) | StartError::BadSnapshot(_) => Self::internal(message),
        }
    }
}

impl ApiError {
    pub(super) fn of_volume(error: &VolumeError, message: String) -> Self {
        let (status, code) = match error {
            VolumeError::Missing(_) => (StatusCode::NOT_FOUND, "not_found"),
            VolumeError::Attached(_) => (StatusCode::CONFLICT, "volume_attached"),
            VolumeError::Busy(_) | VolumeError::NoSlot => (StatusCode::CONFLICT, "volume_busy"),
            VolumeError::Damaged(_) => (StatusCode::UNPROCESSABLE_ENTITY, "volume_damaged"),
            VolumeError::Place(_) => (StatusCode::UNPROCESSABLE_ENTITY, "mount_refused"),
            VolumeError::Unavailable(_) => return Self::unavailable(message),
            VolumeError::Host { .. } | VolumeError::Monitor(_) => return Self::internal(message),
        };
        Self { status, code, message }
    }
}

impl From<&VolumeError> for ApiError {
    fn from(error: &VolumeError) -> Self {
        Self::of_volume(error, error_chain::chain(error))
    }
}

impl From<VolumeCreateError> for ApiError {
    fn from(error: VolumeCreateError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            VolumeCreateError::Draft(DraftRefused::Id) => Self::invalid(message),
            VolumeCreateError::Draft(DraftRefused::Taken(_)) => Self::conflict(message),
            VolumeCreateError::Capacity(_) => Self::unavailable(message),
            VolumeCreateError::Space(DiskSpaceError::Short { .. }) => Self::unavailable(message),
            VolumeCreateError::Space(DiskSpaceError::Read(_)) | VolumeCreateError::Storage { .. } => {
                Self::internal(message)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), code = self.code, error = self.message, "request failed");
        }
        (self.status, Json(ErrorBody { code: self.code.to_owned(), message: self.message })).into_response()
    }
}

impl From<Full> for ApiError {
    fn from(full: Full) -> Self {
        let message = full.to_string();
        match full {
            Full::Host(_) => Self::unavailable(message),
            Full::Team(_) => Self { status: StatusCode::UNPROCESSABLE_ENTITY, code: QUOTA_EXCEEDED, message },
            Full::Disabled => Self { status: StatusCode::FORBIDDEN, code: TEAM_DISABLED, message },
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            CreateError::Invalid(_) => Self::invalid(message),
            CreateError::Exists(_) => Self::conflict(message),
            CreateError::Capacity(_) => Self::unavailable(message),
            CreateError::Full(full) => full.into(),
            CreateError::Start(error) => Self::of_start(&error, message),
        }
    }
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            ChangeError::NotFound => Self { status: StatusCode::NOT_FOUND, code: "not_found", message },
            ChangeError::State(_) | ChangeError::Layers => Self::invalid_state(message),
            ChangeError::TooManyPorts | ChangeError::Invalid(_) => Self::invalid(message),
            ChangeError::Full(full) => full.into(),
            ChangeError::Guest(_) => Self::guest_failed(message),
            ChangeError::Start(error) => Self::of_start(&error, message),
            ChangeError::Volume(error) => Self::of_volume(&error, message),
            ChangeError::Unreadable(_)
            | ChangeError::Storage(_)
            | ChangeError::Host { .. }
            | ChangeError::Layer(_)
            | ChangeError::Monitor(_)
            | ChangeError::Unexpected => Self::internal(message),
        }
    }
}

impl From<CheckpointError> for ApiError {
    fn from(error: CheckpointError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            CheckpointError::Draft(DraftError::Id) => Self::invalid(message),
            CheckpointError::Draft(DraftError::Exists(_)) => Self::conflict(message),
            CheckpointError::DiskSpace(DiskSpaceError::Short { .. }) => Self::unavailable(message),
            CheckpointError::Sandbox(error) => error.into(),
            CheckpointError::Draft(DraftError::Storage(_))
            | CheckpointError::DiskSpace(DiskSpaceError::Read(_))
            | CheckpointError::Storage { .. } => Self::internal(message),
        }
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Invalid(message) => Self::invalid(message),
            ForkError::Checkpoint(error) => error.into(),
            ForkError::Create(error) => error.into(),
        }
    }
}

impl From<ImportError> for ApiError {
    fn from(error: ImportError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            ImportError::Invalid { .. } => Self::invalid(message),
            ImportError::Storage(_) => Self::internal(message),
        }
    }
}

impl From<BuildStartError> for ApiError {
    fn from(error: BuildStartError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            BuildStartError::Invalid(_) => Self::invalid(message),
            BuildStartError::Conflict(_) => Self::conflict(message),
            BuildStartError::Unavailable(_) => {
                Self { status: StatusCode::UNPROCESSABLE_ENTITY, code: "build_unavailable", message }
            }
            BuildStartError::Space(DiskSpaceError::Short { .. })
            | BuildStartError::ShuttingDown
            | BuildStartError::Beginning => Self::unavailable(message),
            BuildStartError::Space(DiskSpaceError::Read(_)) | BuildStartError::Storage { .. } => {
                Self::internal(message)
            }
        }
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            UploadError::Id | UploadError::BrokenOff(_) => Self::invalid(message),
            UploadError::Receiving(_) => Self::conflict(message),
            UploadError::TooLarge(_) => Self { status: StatusCode::PAYLOAD_TOO_LARGE, code: "too_large", message },
            UploadError::Short { .. } => Self::unavailable(message),
            UploadError::Storage { .. } => Self::internal(message),
        }
    }
}

impl From<DeleteError> for ApiError {
    fn from(error: DeleteError) -> Self {
        let message = error_chain::chain(&error);
        match error {
            DeleteError::Pinned(_) => Self::conflict(message),
            DeleteError::Storage(_) => Self::internal(message),
        }
    }
}

/// A JSON body whose refusal is an [`ApiError`].
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            // The body may hold secrets; serde's messages name fields and positions, and of values at most the type's kind.
            Err(rejection) => Err(Self::Rejection::from(rejection)),
        }
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        Self::invalid(rejection.body_text())
    }
}
