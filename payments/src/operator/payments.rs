//! Payments: reported by whoever carries them out, listed, shown.
//!
//! A report says the whole state of a payment, not a change, under the payment's id and with an `updatedAt`. So it may be
//! sent again whenever its fate is not known: a report that was accepted before changes nothing and is answered as the
//! first time, one that is overtaken is refused. Reports of one payment with the same time and other content are a mistake
//! at the source, and refused too.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::{SignedDuration, Timestamp};
use sandpiper_accounts::operators::audited::Written;
use sandpiper_db::audit;
use sandpiper_discovery::codes;
use sandpiper_discovery::settings::{MOBILE_MONEY_TRANSFER, PaymentSettings};
use sandpiper_http::json::Json as Body;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::auth::Operator;
use crate::domain::amount::Amount;
use crate::domain::order::{PaymentOrder, Status};
use crate::domain::realm::Realm;
use crate::error::{RpcError, Violation};
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::payments::{Accepted, PaymentFilter, PaymentRow, PaymentUpdate, PutPaymentError};

/// Of `metadata` and `mobileMoneyTransferDetails`.
const MAX_PAIRS: usize = 50;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1000;

/// A payment, and whose it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Payment)]
pub struct PaymentBody {
    pub merchant_id: String,
    pub realm: Realm,
    #[schema(value_type = PaymentOrder)]
    pub payment: Box<RawValue>,
    /// Of the webhook that this report gave rise to; none if the realm had no URL, or it was removed after its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
}

/// Payments, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Payments)]
pub struct PaymentsBody {
    pub payments: Vec<PaymentBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// The whole state of a payment.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutPayment {
    /// Fixed.
    pub merchant_id: String,
    /// Fixed.
    pub realm: Realm,
    pub status: Status,
    /// What was asked for, more than nothing. Fixed.
    pub amount: Amount,
    /// What was recognized; a completed payment has it.
    pub actual_amount: Option<Amount>,
    /// Fixed.
    #[schema(example = "KES")]
    pub currency_code: String,
    /// Fixed.
    #[schema(example = "KE")]
    pub country_code: String,
    /// Fixed.
    #[schema(example = "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER")]
    pub payment_method: String,
    pub operator: Option<String>,
    pub bank_code: Option<String>,
    /// Only for `PAYMENT_METHOD_MOBILE_MONEY_TRANSFER`; up to 50 texts.
    pub mobile_money_transfer_details: Option<BTreeMap<String, String>>,
    /// RFC 3339, whole milliseconds. Fixed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// RFC 3339, whole milliseconds; later than that of the report before, and at most 5 minutes ahead of the service's clock.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// Up to 50 texts.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

impl PutPayment {
    /// The payment order that is reported.
    fn order(self, id: String, settings: &PaymentSettings, now: Timestamp) -> Result<PaymentOrder, RpcError> {
        let mut wrong = Vec::new();
        let mut check = |field: &str, is_right: bool, problem: &str| {
            if !is_right {
                wrong.push(Violation::new(field, problem));
            }
        };
        check("id", codes::is_code(&id), codes::CODE);
        check("amount", !self.amount.is_zero(), "must be more than nothing");
        let is_explained = self.status != Status::Completed || self.actual_amount.is_some();
        check("actualAmount", is_explained, "is missing: a completed payment has the amount that was recognized");
        check("currencyCode", codes::is_currency(&self.currency_code), codes::CURRENCY);
        check("countryCode", codes::is_country(&self.country_code), codes::COUNTRY);
        if let Err(problem) = settings.check_method(&self.payment_method) {
            check("paymentMethod", false, &problem);
        }
        for (field, code) in [("operator", &self.operator), ("bankCode", &self.bank_code)] {
            check(field, code.as_deref().is_none_or(codes::is_code), codes::CODE);
        }
        if let Some(details) = &self.mobile_money_transfer_details {
            let field = "mobileMoneyTransferDetails";
            let is_transfer = self.payment_method == MOBILE_MONEY_TRANSFER;
            check(field, is_transfer, "are only for PAYMENT_METHOD_MOBILE_MONEY_TRANSFER");
            check(field, are_small(details), PAIRS);
        }
        check("metadata", are_small(&self.metadata), PAIRS);
        let is_whole = |time: Timestamp| time.subsec_nanosecond() % 1_000_000 == 0;
        check("createdAt", is_whole(self.created_at), "must be whole milliseconds");
        check("updatedAt", is_whole(self.updated_at), "must be whole milliseconds");
        check("updatedAt", self.created_at <= self.updated_at, "must not be before createdAt");
        check(
            "updatedAt",
            self.updated_at.duration_since(now) <= LARGEST_LEAD,
            "must not be more than 5 minutes ahead",
        );
        if !wrong.is_empty() {
            return Err(RpcError::invalid_fields(wrong));
        }
        Ok(PaymentOrder {
            id,
            status: self.status,
            amount: self.amount,
            actual_amount: self.actual_amount,
            currency_code: self.currency_code,
            country_code: self.country_code,
            payment_method: self.payment_method,
            operator: self.operator,
            bank_code: self.bank_code,
            mobile_money_transfer_details: self.mobile_money_transfer_details,
            created_at: self.created_at,
            updated_at: self.updated_at,
            metadata: self.metadata,
        })
    }
}

/// How far the clock of who reports may be ahead. A payment with a time that is far off would take no update until then.
const LARGEST_LEAD: SignedDuration = SignedDuration::from_mins(5);
const PAIRS: &str = "must be at most 50 texts of up to 1000 characters under names of 1 to 64";

fn are_small(pairs: &BTreeMap<String, String>) -> bool {
    pairs.len() <= MAX_PAIRS
        && pairs
            .iter()
            .all(|(key, value)| (1..=MAX_KEY).contains(&key.chars().count()) && value.chars().count() <= MAX_VALUE)
}

/// Report a payment
///
/// Creates the payment or takes over its new state, and enqueues the webhook that tells the merchant, in one transaction.
/// `updatedAt` must be later than before. Legal moves: `PENDING` to any status, `FAILED` to `COMPLETED`, `COMPLETED` to
/// `COMPLETED` with another `actualAmount`. The same report again gets 200 and the same `deliveryId`, and does nothing.
#[utoipa::path(
    put,
    path = "/operator/v1/payments/{id}",
    operation_id = "put_payment",
    tag = "payment data",
    params(("id" = String, Path, description = "1 to 64 letters, digits and characters of `-._:`; of all merchants together")),
    request_body = PutPayment,
    responses(
        (status = 200, description = "Updated, or accepted before", body = PaymentBody),
        (status = 201, description = "Created", body = PaymentBody),
    )
)]
pub async fn put(
    _: Operator,
    State(app): State<App>,
    Extension(entry): Extension<audit::Entry>,
    Path(id): Path<String>,
    parameters: Parameters,
    Body(report): Body<PutPayment>,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    let (merchant_id, realm) = (report.merchant_id.clone(), report.realm);
    let order = report.order(id, &app.settings.payments, app.clock.now())?;
    let document = order.document().map_err(|error| RpcError::internal(error.to_string()))?;
    let update = PaymentUpdate { merchant_id: merchant_id.clone(), realm, order };
    let accepted = app.store.payments.put(update, entry, app.clock.now()).await?;
    let (status, delivery) = match accepted {
        Accepted::Created(delivery) => (StatusCode::CREATED, delivery),
        Accepted::Updated(delivery) | Accepted::Repeated(delivery) => (StatusCode::OK, delivery),
    };
    if delivery.is_some() {
        app.webhooks.wake();
    }
    let delivery_id = delivery.map(|id| id.to_string());
    let body = PaymentBody { merchant_id, realm, payment: raw(document)?, delivery_id };
    let mut response = (status, Json(body)).into_response();
    response.extensions_mut().insert(Written);
    Ok(response)
}

/// Show a payment
#[utoipa::path(
    get,
    path = "/operator/v1/payments/{id}",
    operation_id = "show_any_payment",
    tag = "payment data",
    params(("id" = String, Path, description = "The payment")),
    responses((status = 200, description = "The payment", body = PaymentBody))
)]
pub async fn show(
    _: Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    parameters: Parameters,
) -> Result<Json<PaymentBody>, RpcError> {
    parameters.only(&[])?;
    let row = app.store.payments.get(&id).await?;
    let row = row.ok_or_else(|| RpcError::not_found(format!("There is no payment {id}")))?;
    Ok(Json(body(row)?))
}

/// List payments
#[utoipa::path(
    get,
    path = "/operator/v1/payments",
    operation_id = "list_payments",
    tag = "payment data",
    params(
        ("merchantId" = Option<String>, Query, description = "Only of this merchant"),
        ("realm" = Option<String>, Query, description = "`live` or `sandbox`"),
        ("status" = Option<String>, Query, description = "`PENDING`, `COMPLETED` or `FAILED`"),
        ("pageSize" = Option<u32>, Query, description = "1 to 1000; 100 if left out"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before"),
    ),
    responses((status = 200, description = "A page of payments, newest first", body = PaymentsBody))
)]
pub async fn list(_: Operator, State(app): State<App>, parameters: Parameters) -> Result<Json<PaymentsBody>, RpcError> {
    let parameters = parameters.only(&["merchantId", "realm", "status", "pageSize", "pageToken"])?;
    let given = |name| parameters.optional(name);
    let word = |name, problem| move |()| RpcError::invalid_parameter(name, problem);
    let filter = PaymentFilter {
        merchant_id: given("merchantId").map(str::to_owned),
        realm: given("realm").map(str::parse).transpose().map_err(word("realm", "must be live or sandbox"))?,
        status: given("status")
            .map(str::parse)
            .transpose()
            .map_err(word("status", "must be PENDING, COMPLETED or FAILED"))?,
    };
    let filters = ["payments", given("merchantId").unwrap_or(""), given("realm").unwrap_or("")];
    let paging = Paging::<(i64, String)>::new(&parameters, &[&filters[..], &[given("status").unwrap_or("")]].concat())?;
    let after = paging.after.as_ref().map(|(created_at_ms, id)| (*created_at_ms, id.as_str()));
    let mut rows = app.store.payments.list(&filter, after, paging.limit()).await?;
    let next_page_token = paging.cut(&mut rows, |row| (row.created_at.as_millisecond(), row.id.clone()));
    let payments = rows.into_iter().map(body).collect::<Result<_, _>>()?;
    Ok(Json(PaymentsBody { payments, next_page_token }))
}

impl From<PutPaymentError> for RpcError {
    fn from(error: PutPaymentError) -> Self {
        match error {
            PutPaymentError::NoMerchant(_) => RpcError::invalid_field("merchantId", "names no merchant"),
            PutPaymentError::OfOther => RpcError::already_exists(error.to_string()),
            PutPaymentError::Refused(refusal) => RpcError::aborted(refusal.reason(), refusal.to_string()),
            PutPaymentError::Store(error) => error.into(),
        }
    }
}

fn body(row: PaymentRow) -> Result<PaymentBody, RpcError> {
    let PaymentRow { merchant_id, realm, document, .. } = row;
    Ok(PaymentBody { merchant_id, realm, payment: raw(document)?, delivery_id: None })
}

fn raw(document: String) -> Result<Box<RawValue>, RpcError> {
    RawValue::from_string(document).map_err(|error| RpcError::internal(format!("payment: {error}")))
}
