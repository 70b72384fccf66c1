//! Where a realm's webhooks go, and the secret key that signs them.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_accounts::Role;
use sandpiper_http::error::ApiError;
use sandpiper_web::Problem;
use sandpiper_web::response::{Refusal, page};
use sandpiper_web::view;
use zeroize::Zeroizing;

use super::visit::{Order, Visit, Visitor};
use crate::domain::ids::MerchantId;
use crate::merchant::new_key::NewKey;
use crate::merchant::webhook_config::{save_url, send_test};
use crate::state::App;
use crate::store::merchant_keys::{CreateKeyError, Kind, MerchantKeyRecord};

const SAVE: &str = "POST /portal/{merchant}/{realm}/webhooks";
const ROTATE: &str = "POST /portal/{merchant}/{realm}/secret";

#[derive(Template)]
#[template(path = "webhooks.html")]
struct Page {
    visit: Visit,
    url: Option<String>,
    updated_at: Option<Timestamp>,
    /// What stands in the form.
    entered: String,
    /// The realm's secret key, without itself.
    secret: Option<MerchantKeyRecord>,
    outcome: Option<Outcome>,
}

impl Page {
    fn visitor(&self) -> &Visitor {
        &self.visit.visitor
    }
}

/// What came of a form.
enum Outcome {
    Saved,
    Stopped,
    /// Id of the delivery.
    Testing(String),
    /// The new secret key, shown once.
    Rotated(Zeroizing<String>),
    Refused(Problem),
}

/// `GET /portal/{merchant}/{realm}/webhooks`
pub(super) async fn show(State(app): State<App>, visit: Visit) -> Result<Response, Refusal> {
    respond(&app, visit, None, None).await
}

/// `POST /portal/{merchant}/{realm}/webhooks`: saves a URL, takes it away, or sends a test.
pub(super) async fn change(State(app): State<App>, Order { visit, fields }: Order) -> Result<Response, Refusal> {
    let place = visit.place();
    let resource = format!("webhookConfig/{}", place.realm);
    visit.check(&app, Role::Member, SAVE, &resource).await?;
    let entry = visit.visitor.entry(&app, &place.merchant_id, SAVE, resource);
    let entered = fields.text("url").map(str::to_owned);
    let done = match fields.text("action").unwrap_or_default() {
        "save" => {
            let url = entered.clone().unwrap_or_default();
            save_url(&app, place, Some(&url), entry).await.map(|()| Outcome::Saved)
        }
        "stop" => save_url(&app, place, None, entry).await.map(|()| Outcome::Stopped),
        "test" => {
            let sent = send_test(&app, place).await.map(|sent| Outcome::Testing(sent.delivery_id));
            app.store.audit.keep(vec![entry]).await;
            sent
        }
        other => return Err(Problem::new(StatusCode::BAD_REQUEST, format!("There is no action {other:?}")).into()),
    };
    let outcome = done.unwrap_or_else(|error| Outcome::Refused(error.into()));
    respond(&app, visit, Some(outcome), entered).await
}

/// `POST /portal/{merchant}/{realm}/secret`: the only page that shows the new key.
pub(super) async fn rotate(State(app): State<App>, Order { visit, fields }: Order) -> Result<Response, Refusal> {
    let place = visit.place();
    visit.check(&app, Role::Admin, ROTATE, &format!("keys/{}", place.realm)).await?;
    let merchant = MerchantId::from(place.merchant_id.clone());
    let new = NewKey::new(&app, place.realm, Kind::Secret).map_err(Problem::from)?;
    // The key that was shown as active: what somebody else has rotated meanwhile is not rotated again.
    let old = fields.text("old").unwrap_or_default();
    let done = match old {
        "" => app.store.merchant_keys.create(&new.row(&merchant), new.created_at).await.map(|()| true),
        old => app.store.merchant_keys.rotate(&old.into(), &new.row(&merchant), new.created_at).await,
    };
    let outcome = match done {
        Ok(true) => {
            let resource = format!("keys/{}", new.id);
            app.store.audit.keep(vec![visit.visitor.entry(&app, &merchant, ROTATE, resource)]).await;
            Outcome::Rotated(new.key)
        }
        Ok(false) | Err(CreateKeyError::SecretExists) => {
            let message = "The key was rotated meanwhile; nothing was done now. Look whether that is what was wanted";
            Outcome::Refused(Problem::new(StatusCode::CONFLICT, message))
        }
        Err(CreateKeyError::NoMerchant) => {
            Outcome::Refused(Problem::new(StatusCode::NOT_FOUND, "There is no such merchant any more"))
        }
        Err(CreateKeyError::Store(error)) => return Err(ApiError::from(error).into()),
    };
    respond(&app, visit, Some(outcome), None).await
}

async fn respond(
    app: &App,
    visit: Visit,
    outcome: Option<Outcome>,
    entered: Option<String>,
) -> Result<Response, Refusal> {
    let place = visit.place();
    let saved = app.store.webhook_endpoints.get(&place).await.map_err(ApiError::from)?;
    let (url, updated_at) = saved.map_or((None, None), |saved| (saved.url, Some(saved.updated_at)));
    let merchant = MerchantId::from(place.merchant_id.clone());
    let secret = app.store.merchant_keys.active_secret(&merchant, place.realm).await.map_err(ApiError::from)?;
    let status = match &outcome {
        Some(Outcome::Refused(problem)) => problem.status,
        _ => StatusCode::OK,
    };
    // What was refused is there to be changed.
    let entered = entered.filter(|_| status != StatusCode::OK).or_else(|| url.clone()).unwrap_or_default();
    Ok((status, page(&Page { visit, url, updated_at, entered, secret, outcome })).into_response())
}
