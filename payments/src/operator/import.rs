//! Importing markets, banks and operators in bulk.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sandpiper_accounts::operators::audited::Written;
use sandpiper_db::audit;
use sandpiper_discovery::Seed;
use sandpiper_discovery::checks::Offered;
use sandpiper_discovery::import::{Format, KindError, read};
use sandpiper_http::json::{self, BodyLimit};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::Operator;
use crate::error::{Code, RpcError};
use crate::parameters::Parameters;
use crate::state::App;

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
/// Adds the entries of a file, or puts them in the place of those with the same key, all at once. When anything is wrong,
/// nothing is stored and the error names line, column and field of each mistake, up to a hundred. Entries that the file does
/// not name stay as they are.
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
    Extension(entry): Extension<audit::Entry>,
    parameters: Parameters,
    request: Request,
) -> Result<Response, RpcError> {
    let parameters = parameters.only(&["kind", "dry_run"])?;
    let dry_run = match parameters.optional("dry_run") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(RpcError::invalid_parameter("dry_run", "must be true or false")),
    };
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let format = format(content_type, parameters.optional("kind"))?;
    let file = json::read(request, BodyLimit(app.settings.payments.import_limit)).await?;
    let offered = Offered::by(&app.store.discovery.markets().await?);
    let seed = parse(&app, file, format, offered).await?;
    let most = app.settings.payments.import_entries;
    if seed.entries() > most {
        return Err(too_many(seed.entries(), most));
    }
    let (markets, banks, operators) = (seed.markets.len(), seed.banks.len(), seed.mobile_operators.len());
    let mut response = Json(ImportBody { dry_run, markets, banks, operators }).into_response();
    if !dry_run {
        let entry = audit::Entry { status: response.status().as_u16(), ..entry };
        app.store.discovery.import(&seed, entry).await?;
        response.extensions_mut().insert(Written);
    }
    Ok(response)
}

/// On a thread that may be busy for a while.
async fn parse(app: &App, file: Bytes, format: Format, offered: Offered) -> Result<Seed, RpcError> {
    let app = app.clone();
    let parsing = tokio::task::spawn_blocking(move || read(&file, format, &app.settings.payments, offered));
    Ok(parsing.await.map_err(|error| RpcError::internal(format!("import: {error}")))??)
}

fn too_many(entries: usize, most: usize) -> RpcError {
    let message = format!(
        "Nothing was imported: the file has {entries} entries, of which {most} can be imported at a time; split it"
    );
    RpcError::new(Code::InvalidArgument, "TOO_MANY_ENTRIES", message)
        .with("entries", entries.to_string())
        .with("limit", most.to_string())
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
