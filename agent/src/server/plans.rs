//! `/plans`: in which sizes sandboxes will come.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use sandpiper_protocol::agent::PlanSizes;

use super::App;
use super::error::{ApiError, Body};

/// More than there are plans.
const MOST: usize = 16;

/// `PUT /plans`
pub(super) async fn replace(
    State(app): State<Arc<App>>,
    Body(PlanSizes { root_disks_gib }): Body<PlanSizes>,
) -> Result<StatusCode, ApiError> {
    let most_gib = app.config.limits.max_disk_gib;
    if root_disks_gib.len() > MOST || root_disks_gib.contains(&0) {
        return Err(ApiError::invalid(format!("root_disks_gib: at most {MOST}, of 1 GiB at least")));
    }
    let possible = root_disks_gib.into_iter().filter(|disk_gib| *disk_gib <= most_gib).collect();
    app.sandboxes.context().root_disks.send_replace(possible);
    Ok(StatusCode::NO_CONTENT)
}
