//! One's own password.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use sandpiper_web::Problem;
use sandpiper_web::form::Sent;
use sandpiper_web::response::{Refusal, page};
use zeroize::Zeroizing;

use super::visit::Visitor;
use crate::state::App;

#[derive(Template)]
#[template(path = "account.html")]
struct Page {
    visitor: Visitor,
    /// Of a change that was tried.
    outcome: Option<Result<(), String>>,
}

impl Page {
    fn visitor(&self) -> &Visitor {
        &self.visitor
    }
}

/// `GET /portal/account`
pub(super) async fn show(visitor: Visitor) -> Response {
    page_of(visitor, None)
}

/// The page, with what came of a change.
pub(super) fn page_of(visitor: Visitor, outcome: Option<Result<(), String>>) -> Response {
    page(&Page { visitor, outcome })
}

/// `POST /portal/account`
pub(super) async fn change_password(
    State(app): State<App>,
    visitor: Visitor,
    Sent { fields, .. }: Sent,
) -> Result<Response, Refusal> {
    let secret = |name| Zeroizing::new(fields.exact(name).to_owned());
    let (current, password) = (secret("current"), secret("password"));
    let now = app.clock.now();
    let changed = app.accounts.change_password(&visitor.user.id, current, password, &visitor.session_id, now).await;
    let status = changed.as_ref().err().map(|error| error.status()).unwrap_or_default();
    let outcome = changed.map_err(|error| Problem::from(&error).in_words());
    Ok((status, page_of(visitor, Some(outcome))).into_response())
}
