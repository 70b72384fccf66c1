//! Query parameters, taken strictly: one that is unknown or repeated is refused, for a misspelt `customerSegment` must not
//! show what another segment gets.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

use super::error::RpcError;
use crate::state::App;

/// The decoded parameters of a request.
#[derive(Debug)]
pub struct Parameters(Vec<(String, String)>);

impl FromRequestParts<App> for Parameters {
    type Rejection = RpcError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, RpcError> {
        Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map(|Query(pairs)| Self(pairs))
            .map_err(|error| RpcError::invalid_parameter("query", error.body_text()))
    }
}

impl Parameters {
    /// The same, if there are only these, each at most once.
    pub fn only(self, known: &[&str]) -> Result<Self, RpcError> {
        for (index, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let problem = match known {
                    [] => "is unknown: this request takes none".to_owned(),
                    _ => format!("is unknown: this request takes {}", known.join(", ")),
                };
                return Err(RpcError::invalid_parameter(name, problem));
            }
            if self.0[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(RpcError::invalid_parameter(name, "is given twice"));
            }
        }
        Ok(self)
    }

    /// A parameter's value, if it is given.
    pub fn optional(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// A parameter's value; one that is empty is missing.
    pub fn required(&self, name: &str) -> Result<&str, RpcError> {
        self.optional(name).filter(|value| !value.is_empty()).ok_or_else(|| RpcError::missing_parameter(name))
    }
}
