//! The OpenAPI document, made from the handlers, and a page that shows it and that of payments, and leads to those on what the
//! document does not describe. `/mcp`, whose handler is the protocol's own, is written down here.

use axum::Router;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::routing::get;
use sandpiper_http::document;
use sandpiper_http::error::{Detail, ErrorBody};
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem, PathItemBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::Type;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    Required, Response, ResponseBuilder, SecurityRequirement,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use crate::examples;
use crate::operator;
use crate::quota::QuotaBody;
use crate::state::App;
use crate::v1;

const DESCRIPTION: &str = "Isolated Linux machines for agents and automation.\n\n\
    Every request carries `Authorization: Bearer <API key>`. A key acts for one team and may read, or read and write; \
    requests other than GET need one that may write. Users sign in with `POST /v1/login`, whose token stands where a key does, and \
    act for one of their teams in each request. Errors have one shape; `error` is for programs, `message` for \
    people. Requests that change something take an `Idempotency-Key`.\n\n\
    `/operator` is for those who operate the host, with an operator key (`opk_…`).\n\n\
    Processes and files of a sandbox are reached at its own URL, the data plane, with the access token of a session: \
    `/docs/data-plane` and `/docs/filesystem` show each of its calls.";

/// What operators show.
const OPERATOR_KEY: &str = "operator_key";
/// The name of the envelope of errors.
const ERROR: &str = "Error";

/// The routes, apart, and the document that describes all of them.
pub fn of<const N: usize>(routes: [OpenApiRouter<App>; N]) -> ([Router<App>; N], OpenApi) {
    let mut document = base();
    let routers = routes.map(|routes| {
        let (router, described) = routes.split_for_parts();
        document.merge(described);
        router
    });
    complete(&mut document);
    document.paths.paths.insert("/mcp".to_owned(), mcp());
    show(&mut document);
    (routers, document)
}

/// The document as it is checked in and served.
///
/// # Errors
///
/// Where it has no JSON form, which is a bug.
pub fn text() -> Result<String, serde_json::Error> {
    let (_, document) = of([v1::router(), v1::entrance(), operator::router()]);
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
                            .description(Some("An API key, `spk_…`, or the token of a login session, `sps_…`; `X-API-Key: <key>` works too"))
                            .build(),
                    ),
                )
                .security_scheme(
                    OPERATOR_KEY,
                    SecurityScheme::Http(
                        HttpBuilder::new()
                            .scheme(HttpAuthScheme::Bearer)
                            .description(Some("An operator key, `opk_…`; `X-API-Key: <key>` works too"))
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
    for (path, item) in &mut document.paths.paths {
        let is_operators = path.starts_with(operator::ROOT);
        for operation in [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete].into_iter().flatten() {
            if !is_operators {
                operation.parameters.get_or_insert_default().push(RefOr::T(idempotency_key()));
            }
        }
        let all = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in all.into_iter().flatten() {
            operation.responses.responses.insert("default".to_owned(), RefOr::T(error_response()));
            if is_operators {
                operation.security = Some(vec![SecurityRequirement::new(OPERATOR_KEY, Vec::<String>::new())]);
            }
        }
    }
}

/// Adds the examples.
fn show(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        let all = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in all.into_iter().flatten() {
            let Some(example) = operation.operation_id.as_deref().and_then(examples::of) else { continue };
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                set_example(&mut body.content, example.request);
            }
            // In the document's order, the first success comes first.
            if let Some(RefOr::T(response)) = operation.responses.responses.values_mut().next() {
                set_example(&mut response.content, example.response);
            }
        }
    }
}

fn set_example<'a>(
    contents: impl IntoIterator<Item = (&'a String, &'a mut RefOr<Content>)>,
    example: Option<serde_json::Value>,
) {
    for (kind, content) in contents {
        if let (true, RefOr::T(content)) = (kind == "application/json", content) {
            content.example.clone_from(&example);
        }
    }
}

/// The Model Context Protocol: one path, whose messages are its own.
fn mcp() -> PathItem {
    let message = || {
        let schema = ObjectBuilder::new().schema_type(Type::Object).description(Some("A message of JSON-RPC 2.0"));
        ContentBuilder::new().schema(Some(schema.build())).build()
    };
    let session = |required| {
        ParameterBuilder::new()
            .name("Mcp-Session-Id")
            .parameter_in(ParameterIn::Header)
            .required(required)
            .description(Some("The session, which the response to `initialize` names in a header of this name"))
            .schema(Some(ObjectBuilder::new().schema_type(Type::String).build()))
            .build()
    };
    let response = |description: &str| ResponseBuilder::new().description(description);
    let operation = |id: &str, summary: &str, description: &str| {
        OperationBuilder::new()
            .operation_id(Some(id))
            .tag("mcp")
            .summary(Some(summary))
            .description(Some(description))
            .response("default", RefOr::T(error_response()))
    };
    let call = operation(
        "call_mcp",
        "Call a tool",
        "The Model Context Protocol (streamable HTTP, versions 2024-11-05 to 2025-11-25): sandboxes as tools of an agent, which \
         `docs/mcp.md` lists. A conversation begins with `initialize`, without a session. The response is one message, or a stream \
         of server-sent events that ends with it. The key must be one that may write.",
    )
    .parameter(session(Required::False))
    .request_body(Some(
        RequestBodyBuilder::new().content("application/json", message()).required(Some(Required::True)).build(),
    ))
    .response("200", response("The response").content("application/json", message()))
    .response("202", response("Taken; this kind of message has no response"));
    let listen =
        operation("listen_mcp", "Listen for messages", "A stream of server-sent events: what the server says unasked.")
            .parameter(session(Required::True))
            .response("200", response("The stream, as `text/event-stream`"));
    let end = operation("end_mcp", "End a session", "Its sandboxes stay, and pause at their deadlines.")
        .parameter(session(Required::True))
        .response("202", response("Ended"));
    let mut item = PathItemBuilder::new().build();
    for (method, operation) in [(HttpMethod::Post, call), (HttpMethod::Get, listen), (HttpMethod::Delete, end)] {
        item.merge_operations(PathItem::new(method, operation.build()));
    }
    item
}

fn idempotency_key() -> Parameter {
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("1 to 255 visible ASCII characters; a repetition within 24 hours gets the first response"))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String).max_length(Some(255)).build()))
        .build()
}

fn error_response() -> Response {
    let schema = RefOr::Ref(Ref::from_schema_name(ERROR));
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description("Refused, or failed").content("application/json", content).build()
}

/// Pages of what the document does not describe, as text, below `/docs`, whose page leads to them.
const PAGES: [(&str, &str); 3] = [
    ("/docs/data-plane", include_str!("../../docs/data-plane.md")),
    ("/docs/filesystem", include_str!("../../docs/filesystem.md")),
    ("/docs/mcp", include_str!("../../docs/mcp.md")),
];

/// `/openapi.json`, `/docs`, and the pages below it.
pub fn router(document: &OpenApi) -> Router<App> {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let router = document::router(document, "/openapi.json", "/docs");
    PAGES.into_iter().fold(router, |router, (path, text)| router.route(path, get((headers.clone(), text))))
}
