//! `/operator/v1`: what those who operate the service bring in and look at. One file per resource.
//!
//! | route | file |
//! |---|---|
//! | `POST/GET /operator/v1/merchants`, `GET/PATCH …/merchants/{merchant}` | [`merchants`] |
//! | `POST/GET …/merchants/{merchant}/keys`, `POST …/keys/{key}/rotate`, `DELETE …/keys/{key}` | [`merchant_keys`] |
//! | `POST …/merchants/{merchant}/invitations` | [`invitations`] |
//! | `GET …/markets`, `PUT/DELETE …/markets/{countryCode}/{currencyCode}` | [`markets`] |
//! | `GET …/banks`, `PUT/DELETE …/banks/{countryCode}/{code}` | [`banks`] |
//! | `GET …/mmo`, `PUT/DELETE …/mmo/{countryCode}/{paymentMethod}/{operator}` | [`mobile_operators`] |
//! | `POST …/import` | [`import`] |
//! | `GET …/payments`, `GET/PUT …/payments/{id}` | [`payments`] |
//! | `GET …/deliveries[/{id}]`, `POST …/deliveries/replay`, `…/{id}/replay`, `…/{id}/cancel` | [`deliveries`] |
//! | `POST …/payments/{id}/deliver`, `…/merchants/{merchant}/webhookConfig/test` | [`deliveries`] |
//!
//! Every handler's first parameter is the proof of an operator key ([`auth`]). What changes something is audited
//! ([`sandpiper_accounts::operators::audited`]). Errors are those of `/merchant` ([`crate::error`]).

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::App;

pub mod auth;
pub mod banks;
pub mod deliveries;
mod faults;
pub mod import;
pub mod invitations;
pub mod markets;
pub mod merchant_keys;
pub mod merchants;
pub mod mobile_operators;
pub mod payments;

/// All routes.
pub fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(merchants::create, merchants::list))
        .routes(routes!(merchants::show, merchants::update))
        .routes(routes!(merchant_keys::create, merchant_keys::list))
        .routes(routes!(merchant_keys::rotate))
        .routes(routes!(invitations::create))
        .routes(routes!(merchant_keys::revoke))
        .routes(routes!(markets::list))
        .routes(routes!(markets::put, markets::remove))
        .routes(routes!(banks::list))
        .routes(routes!(banks::put, banks::remove))
        .routes(routes!(mobile_operators::list))
        .routes(routes!(mobile_operators::put, mobile_operators::remove))
        .routes(routes!(import::import))
        .routes(routes!(payments::list))
        .routes(routes!(payments::show, payments::put))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::show))
        .routes(routes!(deliveries::replay))
        .routes(routes!(deliveries::replay_many))
        .routes(routes!(deliveries::cancel))
        .routes(routes!(deliveries::deliver))
        .routes(routes!(deliveries::test))
}
