//! Banks for pay-ins.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_discovery::Bank;
use sandpiper_discovery::checks::{Cell, Faults, Offered, Place, RawBank, RawSeed};
use sandpiper_http::json::Json as Body;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use crate::error::RpcError;
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;

/// A bank, as it is written in a file to import.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BankEntry)]
pub struct BankBody {
    #[schema(example = "NG")]
    pub country_code: String,
    #[schema(example = "044")]
    pub code: String,
    pub name: String,
    /// `TRAFFIC_VERTICAL_…`: for these only; empty: for all.
    pub traffic_verticals: Vec<String>,
    /// `CUSTOMER_SEGMENT_…`: for these only; empty: for all.
    pub customer_segments: Vec<String>,
}

/// Banks, by country and code.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BankEntries)]
pub struct BanksBody {
    pub banks: Vec<BankBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// What is said of a bank.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutBank {
    pub name: String,
    #[serde(default)]
    pub traffic_verticals: Vec<String>,
    #[serde(default)]
    pub customer_segments: Vec<String>,
}

impl From<Bank> for BankBody {
    fn from(bank: Bank) -> Self {
        Self {
            country_code: bank.country_code,
            code: bank.code,
            name: bank.name,
            traffic_verticals: bank.audience.traffic_verticals,
            customer_segments: bank.audience.customer_segments,
        }
    }
}

/// List banks
#[utoipa::path(
    get,
    path = "/operator/v1/banks",
    operation_id = "list_banks",
    tag = "discovery data",
    params(
        ("countryCode" = Option<String>, Query, description = "Only of this country"),
        ("pageSize" = Option<u32>, Query, description = "1 to 1000; 100 if left out"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before"),
    ),
    responses((status = 200, description = "A page of banks", body = BanksBody))
)]
pub async fn list(_: Operator, State(app): State<App>, parameters: Parameters) -> Result<Json<BanksBody>, RpcError> {
    let parameters = parameters.only(&["countryCode", "pageSize", "pageToken"])?;
    let country = parameters.optional("countryCode");
    let paging = Paging::<(String, String)>::new(&parameters, &["banks", country.unwrap_or("")])?;
    let after = paging.after.as_ref().map_or(("", ""), |(country, code)| (country, code));
    let mut banks = app.store.discovery.banks(country, after, paging.limit()).await?;
    let next_page_token = paging.cut(&mut banks, |bank| (bank.country_code.clone(), bank.code.clone()));
    Ok(Json(BanksBody { banks: banks.into_iter().map(BankBody::from).collect(), next_page_token }))
}

/// Put a bank
///
/// Adds a bank, or replaces what is said of it.
#[utoipa::path(
    put,
    path = "/operator/v1/banks/{countryCode}/{code}",
    operation_id = "put_bank",
    tag = "discovery data",
    params(
        ("countryCode" = String, Path, description = "ISO 3166-1 alpha-2"),
        ("code" = String, Path, description = "1 to 64 letters, digits and characters of `-._:`"),
    ),
    request_body = PutBank,
    responses((status = 200, description = "The bank", body = BankBody))
)]
pub async fn put(
    _: Operator,
    State(app): State<App>,
    Path((country, code)): Path<(String, String)>,
    parameters: Parameters,
    Body(bank): Body<PutBank>,
) -> Result<Json<BankBody>, RpcError> {
    parameters.only(&[])?;
    let raw = RawBank {
        country_code: Cell::new(country, Place::field("countryCode")),
        code: Cell::new(code, Place::field("code")),
        name: Cell::new(bank.name, Place::field("name")),
        traffic_verticals: Cell::new(bank.traffic_verticals, Place::field("trafficVerticals")),
        customer_segments: Cell::new(bank.customer_segments, Place::field("customerSegments")),
    };
    let raw = RawSeed { banks: vec![raw], ..RawSeed::default() };
    let offered = Offered::by(&app.store.discovery.markets().await?);
    let mut seed = raw.check(&app.settings.payments, Faults::default(), offered)?;
    app.store.discovery.store(&seed).await?;
    let stored = seed.banks.pop().ok_or_else(|| RpcError::internal("one bank was checked, none came out"))?;
    Ok(Json(stored.into()))
}

/// Remove a bank
#[utoipa::path(
    delete,
    path = "/operator/v1/banks/{countryCode}/{code}",
    operation_id = "remove_bank",
    tag = "discovery data",
    params(
        ("countryCode" = String, Path, description = "ISO 3166-1 alpha-2"),
        ("code" = String, Path, description = "The bank's code"),
    ),
    responses((status = 204, description = "Removed"))
)]
pub async fn remove(
    _: Operator,
    State(app): State<App>,
    Path((country, code)): Path<(String, String)>,
    parameters: Parameters,
) -> Result<StatusCode, RpcError> {
    parameters.only(&[])?;
    match app.store.discovery.remove_bank(&country, &code).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(RpcError::not_found(format!("There is no bank {code} in {country}"))),
    }
}
