//! Mobile money operators for pay-ins: wallets, and rails of inbound transfers.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_discovery::MobileOperator;
use sandpiper_discovery::checks::{Cell, Faults, Offered, Place, RawOperator, RawSeed};
use sandpiper_http::json::Json as Body;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use crate::error::RpcError;
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;

/// An operator, as it is written in a file to import.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MobileOperatorEntry)]
pub struct OperatorBody {
    #[schema(example = "KE")]
    pub country_code: String,
    /// `PAYMENT_METHOD_MOBILE_MONEY` or `PAYMENT_METHOD_MOBILE_MONEY_TRANSFER`
    pub payment_method: String,
    pub operator: String,
    pub name: String,
    /// `TRAFFIC_VERTICAL_…`: for these only; empty: for all.
    pub traffic_verticals: Vec<String>,
    /// `CUSTOMER_SEGMENT_…`: for these only; empty: for all.
    pub customer_segments: Vec<String>,
}

/// Operators, by country, payment method and code.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MobileOperatorEntries)]
pub struct OperatorsBody {
    pub operators: Vec<OperatorBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// What is said of an operator.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutOperator {
    pub name: String,
    #[serde(default)]
    pub traffic_verticals: Vec<String>,
    #[serde(default)]
    pub customer_segments: Vec<String>,
}

impl From<MobileOperator> for OperatorBody {
    fn from(operator: MobileOperator) -> Self {
        Self {
            country_code: operator.country_code,
            payment_method: operator.method,
            operator: operator.code,
            name: operator.name,
            traffic_verticals: operator.audience.traffic_verticals,
            customer_segments: operator.audience.customer_segments,
        }
    }
}

/// List mobile money operators
#[utoipa::path(
    get,
    path = "/operator/v1/mmo",
    operation_id = "list_mobile_operators",
    tag = "discovery data",
    params(
        ("countryCode" = Option<String>, Query, description = "Only of this country"),
        ("pageSize" = Option<u32>, Query, description = "1 to 1000; 100 if left out"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before"),
    ),
    responses((status = 200, description = "A page of operators", body = OperatorsBody))
)]
pub async fn list(
    _: Operator,
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<OperatorsBody>, RpcError> {
    let parameters = parameters.only(&["countryCode", "pageSize", "pageToken"])?;
    let country = parameters.optional("countryCode");
    let paging = Paging::<(String, String, String)>::new(&parameters, &["mmo", country.unwrap_or("")])?;
    let after = paging.after.as_ref().map_or(("", "", ""), |(country, method, code)| (country, method, code));
    let mut operators = app.store.discovery.mobile_operators(country, after, paging.limit()).await?;
    let next_page_token =
        paging.cut(&mut operators, |one| (one.country_code.clone(), one.method.clone(), one.code.clone()));
    Ok(Json(OperatorsBody { operators: operators.into_iter().map(OperatorBody::from).collect(), next_page_token }))
}

/// Put a mobile money operator
///
/// Adds an operator, or replaces what is said of it.
#[utoipa::path(
    put,
    path = "/operator/v1/mmo/{countryCode}/{paymentMethod}/{operator}",
    operation_id = "put_mobile_operator",
    tag = "discovery data",
    params(
        ("countryCode" = String, Path, description = "ISO 3166-1 alpha-2"),
        ("paymentMethod" = String, Path, description = "`PAYMENT_METHOD_MOBILE_MONEY` or `PAYMENT_METHOD_MOBILE_MONEY_TRANSFER`"),
        ("operator" = String, Path, description = "1 to 64 letters, digits and characters of `-._:`"),
    ),
    request_body = PutOperator,
    responses((status = 200, description = "The operator", body = OperatorBody))
)]
pub async fn put(
    _: Operator,
    State(app): State<App>,
    Path((country, method, code)): Path<(String, String, String)>,
    parameters: Parameters,
    Body(operator): Body<PutOperator>,
) -> Result<Json<OperatorBody>, RpcError> {
    parameters.only(&[])?;
    let raw = RawOperator {
        country_code: Cell::new(country, Place::field("countryCode")),
        method: Cell::new(method, Place::field("paymentMethod")),
        code: Cell::new(code, Place::field("operator")),
        name: Cell::new(operator.name, Place::field("name")),
        traffic_verticals: Cell::new(operator.traffic_verticals, Place::field("trafficVerticals")),
        customer_segments: Cell::new(operator.customer_segments, Place::field("customerSegments")),
    };
    let raw = RawSeed { operators: vec![raw], ..RawSeed::default() };
    let offered = Offered::by(&app.store.discovery.markets().await?);
    let mut seed = raw.check(&app.settings.payments, Faults::default(), offered)?;
    app.store.discovery.store(&seed).await?;
    let stored = seed.mobile_operators.pop();
    let stored = stored.ok_or_else(|| RpcError::internal("one operator was checked, none came out"))?;
    Ok(Json(stored.into()))
}

/// Remove a mobile money operator
#[utoipa::path(
    delete,
    path = "/operator/v1/mmo/{countryCode}/{paymentMethod}/{operator}",
    operation_id = "remove_mobile_operator",
    tag = "discovery data",
    params(
        ("countryCode" = String, Path, description = "ISO 3166-1 alpha-2"),
        ("paymentMethod" = String, Path, description = "The payment method"),
        ("operator" = String, Path, description = "The operator's code"),
    ),
    responses((status = 204, description = "Removed"))
)]
pub async fn remove(
    _: Operator,
    State(app): State<App>,
    Path((country, method, code)): Path<(String, String, String)>,
    parameters: Parameters,
) -> Result<StatusCode, RpcError> {
    parameters.only(&[])?;
    match app.store.discovery.remove_mobile_operator(&country, &method, &code).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(RpcError::not_found(format!("There is no operator {code} for {method} in {country}"))),
    }
}
