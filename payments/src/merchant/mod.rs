//! `/merchant/api/v1`: what merchants ask. One file per resource, each with its routes' parameters, bodies and handlers.
//!
//! | route | file |
//! |---|---|
//! | `GET /merchant/api/v1/catalog` | [`catalog`](mod@catalog) |
//! | `GET /merchant/api/v1/payins/banks` | [`banks`](mod@banks) |
//! | `GET /merchant/api/v1/payins/mmo` | [`mmo`](mod@mmo) |
//! | `GET /merchant/api/v1/payment/{id}` | [`payment`](mod@payment) |
//! | `GET/PUT /merchant/api/v1/webhookConfig`, `POST …/webhookConfig/test` | [`webhook_config`] |
//!
//! A handler's first parameter says which kind of key it needs ([`auth`]); merchant and realm come from the key and from
//! nowhere else.

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::App;

pub mod auth;
pub mod banks;
pub mod catalog;
pub mod keys;
pub mod mmo;
pub mod new_key;
pub mod payment;
pub mod selection;
pub mod webhook_config;

/// All routes.
pub fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(catalog::catalog))
        .routes(routes!(banks::banks))
        .routes(routes!(mmo::mmo))
        .routes(routes!(payment::payment))
        .routes(routes!(webhook_config::show, webhook_config::save))
        .routes(routes!(webhook_config::test))
}
