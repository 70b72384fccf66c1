//! The OpenAPI document, made from the handlers, and a page that shows it and that of payments.

use axum::Router;
use sandpiper_http::document;
use sandpiper_http::error::{Detail, ErrorBody};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Required,
    Response, ResponseBuilder, SecurityRequirement,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use crate::quota::QuotaBody;
use crate::state::App;
use crate::v1;

const DESCRIPTION: &str = "Isolated Linux machines for agents and automation.\n\n\
    Every request carries `Authorization: Bearer <API key>`. A key acts for one team and may read, or read and write; \
    requests other than GET need one that may write. Errors have one shape; `error` is for programs, `message` for \
    people. Requests that change something take an `Idempotency-Key`.";

/// The name of the envelope of errors.
const ERROR: &str = "Error";

/// The routes, and the document that describes them.
pub fn of(routes: OpenApiRouter<App>) -> (Router<App>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(base()).merge(routes).split_for_parts();
    complete(&mut document);
    (router, document)
}

/// The document as it is checked in and served.
///
/// # Errors
///
/// Where it has no JSON form, which is a bug.
pub fn text() -> Result<String, serde_json::Error> {
    let (_, document) = of(v1::router());
    Ok(document.to_pretty_json()? + "\n")
}

/// The document before any route is in it.
fn base() -> OpenApi {
    OpenApiBuilder::new()
        .info(InfoBuilder::new().title("Sandpiper").version("1").description(Some(DESCRIPTION)).build())
        .components(Some(
            ComponentsBuilder::new()
                .security_scheme(
                    "api_key",
                    SecurityScheme::Http(
                        HttpBuilder::new()
                            .scheme(HttpAuthScheme::Bearer)
                            .description(Some("An API key, `spk_…`; `X-API-Key: <key>` works too"))
                            .build(),
                    ),
                )
                .schema(ERROR, ErrorBody::<QuotaBody>::schema())
                .schema(Detail::name(), Detail::schema())
                .build(),
        ))
        .security(Some([SecurityRequirement::new("api_key", Vec::<String>::new())]))
        .build()
}

/// Adds what all operations have in common: the shape of their errors, and the header of those that change something.
fn complete(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete].into_iter().flatten() {
            operation.parameters.get_or_insert_default().push(RefOr::T(idempotency_key()));
        }
        let all = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in all.into_iter().flatten() {
            operation.responses.responses.insert("default".to_owned(), RefOr::T(error_response()));
        }
    }
}

fn idempotency_key() -> Parameter {
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("1 to 255 visible ASCII characters; a repetition within 24 hours gets the first answer"))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String).max_length(Some(255)).build()))
        .build()
}

fn error_response() -> Response {
    let schema = RefOr::Ref(Ref::from_schema_name(ERROR));
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description("Refused, or failed").content("application/json", content).build()
}

/// `/openapi.json` and `/docs`.
pub fn router(document: &OpenApi) -> Router<App> {
    document::router(document, "/openapi.json", "/docs")
}
