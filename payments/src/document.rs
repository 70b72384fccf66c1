//! The OpenAPI document of `/merchant` and `/operator`. It is apart from that of `/v1`, whose keys and errors are others.

use axum::Router;
use sandpiper_http::document;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Response, ResponseBuilder,
    SecurityRequirement,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::error::{ErrorBody, StatusBody};
use crate::state::App;
use crate::{merchant, operator};

const DESCRIPTION: &str = "Payment discovery, payments and webhooks.\n\n\
    `/merchant` is for merchants: every request carries `Authorization: Bearer <key>`, with a public key (`pk_…`) for \
    discovery and a secret key (`sk_…`) for everything; the key decides on merchant and realm. `/operator` is for those \
    who operate the service, with an operator key (`opk_…`). Errors are `google.rpc.Status` in JSON. Parameters that are \
    unknown or repeated are refused.";
const MERCHANT_KEY: &str = "merchant_key";
const OPERATOR_KEY: &str = "operator_key";

/// The routes of both, and the document that describes them.
pub fn of(merchant: OpenApiRouter<App>, operator: OpenApiRouter<App>) -> (Router<App>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(base()).merge(merchant).merge(operator).split_for_parts();
    complete(&mut document);
    (router, document)
}

/// The document as it is checked in and served.
pub fn text() -> Result<String, serde_json::Error> {
    let (_, document) = of(merchant::router(), operator::router());
    Ok(document.to_pretty_json()? + "\n")
}

/// `/payments-openapi.json` and `/payments-docs`
pub fn router(document: &OpenApi) -> Router<App> {
    document::router(document, "/payments-openapi.json", "/payments-docs")
}

fn base() -> OpenApi {
    let bearer = |description: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description)).build();
        SecurityScheme::Http(scheme)
    };
    OpenApiBuilder::new()
        .info(InfoBuilder::new().title("Sandpiper payments").version("1").description(Some(DESCRIPTION)).build())
        .components(Some(
            ComponentsBuilder::new()
                .security_scheme(
                    MERCHANT_KEY,
                    bearer("A merchant's key, `pk_…` or `sk_…`; `X-API-Key: <key>` works too"),
                )
                .security_scheme(OPERATOR_KEY, bearer("An operator key, `opk_…`; `X-API-Key: <key>` works too"))
                .schema(ErrorBody::name(), ErrorBody::schema())
                .schema(StatusBody::name(), StatusBody::schema())
                .build(),
        ))
        .build()
}

/// Adds what all operations have in common: the shape of their errors, and the key that they need.
fn complete(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let key = if path.starts_with("/operator") { OPERATOR_KEY } else { MERCHANT_KEY };
        let all = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in all.into_iter().flatten() {
            operation.security = Some(vec![SecurityRequirement::new(key, Vec::<String>::new())]);
            operation.responses.responses.insert("default".to_owned(), RefOr::T(error_response()));
        }
    }
}

fn error_response() -> Response {
    let schema = RefOr::Ref(Ref::from_schema_name(ErrorBody::name()));
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description("Refused, or failed").content("application/json", content).build()
}
