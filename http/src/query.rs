//! Query strings, as pairs in their order: names such as `query[metadata][key]` fit no struct. A request that takes none says
//! so with [`NoParameters`].

use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use sandpiper_db::StoreError;

use crate::error::ApiError;

/// The decoded pairs.
#[derive(Debug)]
pub struct Pairs(pub Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Pairs {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|error| ApiError::invalid_field("query", error.body_text()))?;
        Ok(Pairs(pairs))
    }
}

impl Pairs {
    /// The one parameter of a request that takes only `team`.
    pub fn only_team(self) -> Result<Option<String>, ApiError> {
        let mut team = None;
        for (name, value) in self.0 {
            match name.as_str() {
                "team" if team.is_none() => team = Some(value),
                "team" => return Err(ApiError::invalid_field("team", "is given twice")),
                _ => return Err(unknown(&name)),
            }
        }
        Ok(team)
    }
}

/// Proof that a request has no parameters.
#[derive(Debug)]
pub struct NoParameters;

impl<S: Sync> FromRequestParts<S> for NoParameters {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Pairs::from_request_parts(parts, state).await?.0.first() {
            Some((name, _)) => Err(unknown(name)),
            None => Ok(Self),
        }
    }
}

/// Refuses the character NUL in path and query, of which PostgreSQL keeps no text: SQLite does, and would find other rows. For
/// everyone who establishes a caller, whom the request must have first.
pub fn check_characters(uri: &Uri) -> Result<(), StoreError> {
    // Nothing else can stand for it there (RFC 3986, 2.1).
    let has_nul = uri.path_and_query().is_some_and(|text| text.as_str().contains("%00"));
    if has_nul { Err(StoreError::NulCharacter) } else { Ok(()) }
}

/// A parameter that does not exist: refused, for a misspelt filter must not show everything.
pub fn unknown(name: &str) -> ApiError {
    ApiError::invalid_field(name, "is no parameter of this request")
}
