//! Templates: what sandboxes start from. A team makes its own and builds versions of them, each of which is immutable.
//!
//! | route | file |
//! |---|---|
//! | `GET /v1/templates` | [`list`] |
//! | `POST /v1/templates` | [`create`] |
//! | `GET/PATCH/DELETE /v1/templates/{slug}` | [`change`] |
//! | `PUT /v1/templates/uploads`, `DELETE /v1/templates/uploads/{id}` | [`uploads`] |
//! | `GET/POST /v1/templates/{slug}/versions` | [`versions`], with the body in [`source`] |
//! | `GET/DELETE /v1/templates/{slug}/versions/{version}`, `POST …/cancel` | [`versions`] |
//! | `GET /v1/templates/{slug}/versions/{version}/logs` | [`logs`] |
//!
//! [`reference`] says what a name stands for, [`body`] what responses hold.

pub mod body;
pub mod change;
pub mod create;
pub mod list;
pub mod logs;
pub mod reference;
pub mod source;
pub mod uploads;
pub mod versions;
