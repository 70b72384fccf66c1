//! Where a realm's webhooks go, and whether they arrive there.
//!
//! The realm's secret key authorises it. The request names the realm all the same: who saves a URL for play money must not
//! find out later that it was for real money, so a realm other than the key's is refused.

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_db::audit;
use sandpiper_http::json::Json;
use sandpiper_http::request::RequestId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::SecretAccess;
use crate::delivery::test_event;
use crate::domain::realm::Realm;
use crate::error::RpcError;
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::deliveries::DeliveryError;
use crate::store::merchant_keys::ActiveMerchantKey;
use crate::store::webhook_endpoints::EndpointKey;

/// Where webhooks go.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookConfig {
    pub realm: Realm,
    /// Null: no webhooks are sent.
    #[schema(required, example = "https://merchant.example.test/webhooks")]
    pub url: Option<String>,
    /// When it was last saved; absent if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Timestamp>,
}

/// Where webhooks are to go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SaveWebhookConfig)]
pub struct SaveRequest {
    /// That of the key.
    pub realm: Realm,
    /// A public https URL; null to send none, which also cancels what waits to be sent.
    #[serde(deserialize_with = "given")]
    #[schema(required)]
    pub url: Option<String>,
}

/// Null has to be written: a forgotten field must not end all webhooks.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

/// Which realm is meant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TestWebhook)]
pub struct TestRequest {
    /// That of the key.
    pub realm: Realm,
}

/// A webhook that is on its way.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestDelivery {
    /// What the receiver gets as `Idempotency-Key`.
    #[schema(example = "dlv_ch2xq4bmzvd0t8rw5yk7n3sj1e")]
    pub delivery_id: String,
    pub realm: Realm,
}

/// Show where webhooks go
///
/// The URL of the key's realm, which has to be named.
#[utoipa::path(
    get,
    path = "/merchant/api/v1/webhookConfig",
    operation_id = "show_webhook_config",
    tag = "webhooks",
    params(("realm" = Realm, Query, description = "That of the key")),
    responses((status = 200, description = "Where webhooks go", body = WebhookConfig))
)]
pub async fn show(
    SecretAccess(caller): SecretAccess,
    State(app): State<App>,
    parameters: Parameters,
) -> Result<axum::Json<WebhookConfig>, RpcError> {
    let parameters = parameters.only(&["realm"])?;
    let realm = parameters.required("realm")?;
    let realm = realm.parse().map_err(|()| RpcError::invalid_parameter("realm", "must be live or sandbox"))?;
    saved(&app, &endpoint(&caller, realm)?).await
}

/// Save where webhooks go
///
/// In force from the next attempt on, also of deliveries that are being tried already.
#[utoipa::path(
    put,
    path = "/merchant/api/v1/webhookConfig",
    operation_id = "save_webhook_config",
    tag = "webhooks",
    request_body = SaveRequest,
    responses((status = 200, description = "Saved", body = WebhookConfig))
)]
pub async fn save(
    SecretAccess(caller): SecretAccess,
    State(app): State<App>,
    Extension(request_id): Extension<RequestId>,
    Json(request): Json<SaveRequest>,
) -> Result<axum::Json<WebhookConfig>, RpcError> {
    let endpoint = endpoint(&caller, request.realm)?;
    let entry = audit::Entry {
        at: app.clock.now(),
        team_id: caller.merchant_id.to_string(),
        key_id: caller.id.to_string(),
        user_id: None,
        request_id: request_id.0,
        action: "PUT /merchant/api/v1/webhookConfig".to_owned(),
        resource: Some(format!("webhookConfig/{}", request.realm)),
        status: StatusCode::OK.as_u16(),
    };
    save_url(&app, endpoint.clone(), request.url.as_deref(), entry).await?;
    saved(&app, &endpoint).await
}

/// Saves where webhooks go, with the entry of the audit; without a URL nowhere.
///
/// # Errors
///
/// 400 on a URL that is no public https URL.
pub async fn save_url(
    app: &App,
    endpoint: EndpointKey,
    url: Option<&str>,
    entry: audit::Entry,
) -> Result<(), RpcError> {
    let url = url.map(|url| app.webhooks.check_url(url)).transpose();
    let url = url.map_err(|error| RpcError::invalid_field("url", format!("is refused. {error}")))?;
    let url = url.map(|url| url.as_str().to_owned());
    let realm = endpoint.realm;
    let cancelled = app.store.webhook_endpoints.configure(endpoint, url, entry, app.clock.now()).await?;
    if cancelled > 0 {
        tracing::info!(cancelled, %realm, "webhooks cancelled: their URL was taken away");
    }
    Ok(())
}

/// Send a test webhook
///
/// `{"id": "test event", "status": "PENDING", …}`, without an amount, signed and sent like an update. No payment has that id.
#[utoipa::path(
    post,
    path = "/merchant/api/v1/webhookConfig/test",
    operation_id = "test_webhook",
    tag = "webhooks",
    request_body = TestRequest,
    responses((status = 202, description = "On its way", body = TestDelivery))
)]
pub async fn test(
    SecretAccess(caller): SecretAccess,
    State(app): State<App>,
    Json(request): Json<TestRequest>,
) -> Result<Response, RpcError> {
    let endpoint = endpoint(&caller, request.realm)?;
    let delivery = send_test(&app, endpoint).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(delivery)).into_response())
}

/// Makes a test delivery and has it sent.
pub async fn send_test(app: &App, endpoint: EndpointKey) -> Result<TestDelivery, RpcError> {
    let (now, realm) = (app.clock.now(), endpoint.realm);
    let id = app.store.deliveries.test(endpoint, test_event::body(now), now).await?;
    app.webhooks.wake();
    Ok(TestDelivery { delivery_id: id.to_string(), realm })
}

/// What is stored.
async fn saved(app: &App, endpoint: &EndpointKey) -> Result<axum::Json<WebhookConfig>, RpcError> {
    let saved = app.store.webhook_endpoints.get(endpoint).await?;
    let (url, updated_at) = saved.map_or((None, None), |saved| (saved.url, Some(saved.updated_at)));
    Ok(axum::Json(WebhookConfig { realm: endpoint.realm, url, updated_at }))
}

/// The caller's endpoint, if it is of this realm.
fn endpoint(caller: &ActiveMerchantKey, realm: Realm) -> Result<EndpointKey, RpcError> {
    if caller.realm != realm {
        let message = format!("The key is of the realm {}; use the secret key of the realm {realm}", caller.realm);
        return Err(RpcError::permission_denied("OTHER_REALM", message));
    }
    Ok(EndpointKey { merchant_id: caller.merchant_id.to_string(), realm })
}

impl From<DeliveryError> for RpcError {
    fn from(error: DeliveryError) -> Self {
        match error {
            DeliveryError::NotFound | DeliveryError::NoPayment => RpcError::not_found(error.to_string()),
            DeliveryError::Exists(ref id) => {
                RpcError::aborted("DELIVERY_EXISTS", format!("{error}; replay it once it has ended"))
                    .with("deliveryId", id.to_string())
            }
            DeliveryError::WrongState(state) => {
                let message = format!("The delivery is {}, in which state this cannot be done", state.as_str());
                RpcError::aborted("WRONG_STATE", message).with("state", state.as_str())
            }
            DeliveryError::NoUrl => {
                RpcError::aborted("NO_URL", "The realm has no URL for webhooks; save one with PUT webhookConfig first")
            }
            DeliveryError::TooManyTests { retry_after_seconds } => {
                let message = format!("{error}; try again in {retry_after_seconds} s");
                RpcError::exhausted("TOO_MANY_TESTS", message, retry_after_seconds)
            }
            DeliveryError::Store(error) => error.into(),
        }
    }
}
