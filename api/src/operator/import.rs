//! Importing markets, banks and operators in bulk.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header;
use sandpiper_discovery::checks::Offered;
use sandpiper_discovery::import::{Format, KindError, read};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::Operator;
use crate::app::App;
use crate::http::json::read_up_to;
use crate::merchant::error::RpcError;
use crate::merchant::parameters::Parameters;

/// What a file holds.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Import)]
pub struct ImportBody {
    /// Whether nothing was stored because that was asked for.
    pub dry_run: bool,
    /// Entries that were added, or took the place of those with the same key.
    pub markets: usize,
    pub banks: usize,
    pub operators: usize,
}

/// Import markets, banks and operators
///
/// Adds the entries of a file, or puts them in the place of those with the same key, in one transaction. When anything is
/// wrong, nothing is stored and the error names line, column and field of each mistake, up to a hundred. Entries that the
/// file does not name stay as they are.
#[utoipa::path(
    post,
    path = "/operator/v1/import",
    operation_id = "import",
    tag = "discovery data",
    params(
        ("kind" = Option<String>, Query, description = "For CSV: `markets`, `banks` or `operators`"),
        ("dry_run" = Option<bool>, Query, description = "`true`: only check the file"),
    ),
    request_body(content(
        (serde_json::Value = "application/json"),
        (String = "text/csv"),
    ), description = "`application/json`: an object with the lists `markets`, `banks`, `operators`. \
                      `text/csv`: one of these lists, with a line that names the columns"),
    responses((status = 200, description = "What was stored", body = ImportBody))
)]
pub async fn import(
    _: Operator,
    State(app): State<App>,
    parameters: Parameters,
    request: Request,
) -> Result<Json<ImportBody>, RpcError> {
    let parameters = parameters.only(&["kind", "dry_run"])?;
    let dry_run = match parameters.optional("dry_run") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(RpcError::invalid_parameter("dry_run", "must be true or false")),
    };
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let format = format(content_type, parameters.optional("kind"))?;
    let settings = &app.config.payments;
    let file = read_up_to(settings.import_limit, request).await?;
    let offered = Offered::by(&app.store.discovery.markets().await?);
    let seed = read(&file, format, settings, offered)?;
    if !dry_run {
        app.store.discovery.store(&seed).await?;
    }
    Ok(Json(ImportBody {
        dry_run,
        markets: seed.markets.len(),
        banks: seed.banks.len(),
        operators: seed.mobile_operators.len(),
    }))
}

fn format(content_type: Option<&str>, kind: Option<&str>) -> Result<Format, RpcError> {
    let media = content_type.map(|text| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match (media.as_deref(), kind) {
        (Some("application/json"), None) => Ok(Format::Json),
        (Some("application/json"), Some(_)) => {
            Err(RpcError::invalid_parameter("kind", "is for CSV only; a JSON document names its lists itself"))
        }
        (Some("text/csv"), None) => Err(RpcError::missing_parameter("kind")),
        (Some("text/csv"), Some(word)) => match word.parse() {
            Ok(kind) => Ok(Format::Csv(kind)),
            Err(KindError) => Err(RpcError::invalid_parameter("kind", "must be markets, banks or operators")),
        },
        _ => Err(RpcError::invalid_field("Content-Type", "must be application/json or text/csv")),
    }
}
