//! JSON bodies, with errors that name the field.

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ApiError;

const NUL_ESCAPE: &[u8] = br"\u0000";

/// Longest body of a request, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimit(pub usize);

/// A body that must be there. The content type is not looked at: every body here is JSON.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T>
where
    BodyLimit: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = read(request, BodyLimit::from_ref(state)).await?;
        if body.is_empty() {
            return Err(ApiError::invalid("The request needs a JSON object as its body"));
        }
        parse(&body).map(Json)
    }
}

/// A body that may be left out, which means `{}`.
#[derive(Debug)]
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJson<T>
where
    BodyLimit: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = read(request, BodyLimit::from_ref(state)).await?;
        if body.is_empty() { Ok(OptionalJson(T::default())) } else { parse(&body).map(OptionalJson) }
    }
}

/// The whole body, or 413.
pub async fn read(request: Request, BodyLimit(limit): BodyLimit) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(request.into_body(), limit).await.map_err(|error| {
        let too_large =
            std::error::Error::source(&error).is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
        if too_large { ApiError::too_large(limit) } else { ApiError::invalid("The request body broke off") }
    })
}

/// Reads a document.
///
/// # Errors
///
/// 400 naming the field.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if let Some(field) = field_with_nul(body) {
        return Err(ApiError::invalid_field(field, "has the character NUL; leave it out"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // A dot is the whole, a question mark what could not be read far enough to tell.
        let field = if matches!(path.as_str(), "." | "?") { "body".to_owned() } else { path };
        ApiError::invalid_field(field, error.into_inner().to_string())
    })?;
    deserializer.end().map_err(|error| ApiError::invalid_field("body", error.to_string()))?;
    Ok(value)
}

/// The field with the character NUL in its name or text, if any has: only one of the databases would keep it. JSON writes it as
/// an escape, without which the document need not be read twice.
fn field_with_nul(json: &[u8]) -> Option<String> {
    let may_be_there = json.windows(NUL_ESCAPE.len()).any(|text| text == NUL_ESCAPE);
    let document = may_be_there.then(|| serde_json::from_slice(json).ok()).flatten()?;
    nul_in(&document, "")
}

fn nul_in(value: &Value, path: &str) -> Option<String> {
    let here = || if path.is_empty() { "body".to_owned() } else { path.to_owned() };
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::String(text) => text.contains('\0').then(here),
        Value::Array(entries) => {
            entries.iter().enumerate().find_map(|(index, entry)| nul_in(entry, &format!("{path}[{index}]")))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, field)| match name.contains('\0') {
            true => Some(here()),
            false => nul_in(field, &below(name)),
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_is_found_wherever_it_stands_and_nothing_else() {
        for (json, field) in [
            (r#"{"a\u0000": 1}"#, Some("body")),
            (r#"{"a": {"b": ["x", "\\\u0000"]}}"#, Some("a.b[1]")),
            (r#"{"a": "\\u0000"}"#, None),
            (r#"{"a": "\u0001"}"#, None),
            (r#"{"a": "\u0000""#, None),
        ] {
            assert_eq!(field_with_nul(json.as_bytes()).as_deref(), field, "{json}");
        }
    }
}
