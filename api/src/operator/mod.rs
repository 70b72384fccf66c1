//! `/operator/v1` of the sandbox side: what those who operate the host look at and change of teams. One file per resource.
//!
//! | route | file |
//! |---|---|
//! | `GET/POST /operator/v1/teams`, `GET/PATCH …/teams/{team}` | [`teams`] |
//! | `POST …/teams/{team}/disable`, `…/enable` | [`teams`] |
//! | `POST …/teams/{team}/invitations` | [`invitations`] |
//! | `GET …/usage` | [`usage`] |
//! | `GET …/audit` | [`audit`] |
//!
//! Every handler's first parameter is the proof of an operator key. What changes something is audited
//! ([`sandpiper_accounts::operators::audited`]), and takes no idempotency key: sent again, it has the same effect, or is told that it
//! was done. Errors, pages and names are those of `/v1`. What stands beside it under `/operator` is of payments, and not known here.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use sandpiper_accounts::Operator;
use sandpiper_http::error::ApiError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::App;

pub mod audit;
pub mod invitations;
pub mod teams;
pub mod usage;

/// What all paths begin with.
pub const ROOT: &str = "/operator/";
/// The first part of each path below `/operator/v1/`.
const RESOURCES: [&str; 3] = ["teams", "usage", "audit"];

/// All routes.
pub fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(teams::list, teams::create))
        .routes(routes!(teams::show, teams::update))
        .routes(routes!(teams::disable))
        .routes(routes!(teams::enable))
        .routes(routes!(invitations::create))
        .routes(routes!(usage::export))
        .routes(routes!(audit::list))
}

/// Whether a path under `/operator` is of this side.
pub fn speaks(path: &str) -> bool {
    let resource = path.strip_prefix("/operator/v1/").and_then(|rest| rest.split('/').next());
    resource.is_some_and(|resource| RESOURCES.contains(&resource))
}

impl FromRequestParts<App> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        Operator::establish(parts, &app.operators).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_this_side_and_none_of_payments_is_known() {
        for path in router().get_openapi().paths.paths.keys() {
            assert!(path.starts_with(ROOT) && speaks(path), "{path}");
        }
        for path in ["/operator/v1/merchants", "/operator/v1", "/operator/v1/teamsters", "/v1/teams"] {
            assert!(!speaks(path), "{path}");
        }
    }
}
