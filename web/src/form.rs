//! Forms that are sent: only from a page of the same session.

use axum::Form;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use subtle::ConstantTimeEq;

use crate::problem::Problem;
use crate::response::Refusal;
use crate::session::{MaybeSession, Session};

/// The field that holds the session's word.
const WORD: &str = "form";
/// The field that names this copy of the form: sent twice, it is done once.
const ONCE: &str = "once";

/// The fields of a form, in their order.
#[derive(Debug)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// These, in their order.
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// What was entered, without white space around it; `None` where that is nothing.
    pub fn text<'a>(&'a self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// As it was entered: for passwords.
    pub fn exact<'a>(&'a self, name: &str) -> &'a str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    /// Whether a box is ticked.
    pub fn is_ticked(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// A number; `None` where nothing was entered.
    ///
    /// # Errors
    ///
    /// What was entered is none.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wrong = |_| Problem::new(StatusCode::BAD_REQUEST, format!("{name}: {text:?} is no number"));
        text.parse().map(Some).map_err(wrong)
    }

    /// The lines of a text, without empty ones.
    pub fn lines<'a>(&'a self, name: &str) -> Vec<&'a str> {
        self.text(name).unwrap_or("").lines().map(str::trim).filter(|line| !line.is_empty()).collect()
    }

    /// Lines of `name=value`.
    ///
    /// # Errors
    ///
    /// A line has no `=`.
    pub fn pairs<'a>(&'a self, name: &str) -> Result<Vec<(&'a str, &'a str)>, Problem> {
        let wrong = |line| {
            Problem::new(StatusCode::BAD_REQUEST, format!("{name}: write each line as name=value, not {line:?}"))
        };
        let pair = |line: &'a str| {
            line.split_once('=').map(|(name, value)| (name.trim(), value.trim())).ok_or_else(|| wrong(line))
        };
        self.lines(name).into_iter().map(pair).collect()
    }

    /// Whether they bear the word of this session's pages.
    pub fn are_of(&self, session: &Session) -> bool {
        self.exact(WORD).as_bytes().ct_eq(session.form_word().as_bytes()).into()
    }

    /// The idempotency key of this copy of the form.
    pub fn once(&self) -> Option<&str> {
        self.text(ONCE)
    }
}

/// A form that a page of this session has sent.
#[derive(Debug)]
pub struct Sent {
    pub session: Session,
    pub fields: Fields,
}

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let Ok(MaybeSession(session)) = MaybeSession::from_request_parts(&mut parts, state).await;
        let session = session.ok_or(Refusal::SignIn)?;
        let fields = read(Request::from_parts(parts, body), state).await?;
        if !fields.are_of(&session) {
            return Err(foreign().into());
        }
        Ok(Self { session, fields })
    }
}

/// A form of a page that needs no session: from a page of this host, as far as the browser says where it comes from.
#[derive(Debug)]
pub struct Entrance(pub Fields);

impl<S: Send + Sync> FromRequest<S> for Entrance {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        if !is_from_here(request.headers()) {
            return Err(foreign().into());
        }
        Ok(Self(read(request, state).await?))
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Fields, Refusal> {
    match Form::<Vec<(String, String)>>::from_request(request, state).await {
        Ok(Form(pairs)) => Ok(Fields(pairs)),
        Err(error) => Err(Problem::new(error.status(), error.body_text()).into()),
    }
}

/// Whether a browser sent this from a page of the same origin; all present ones say so (Fetch Metadata; RFC 6454, 7).
pub fn is_from_here(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_own = |origin: &HeaderValue| {
        let named = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        named.is_some_and(|(_, origin)| Some(origin) == host)
    };
    headers.get(header::ORIGIN).is_none_or(is_own)
}

/// 403 on what a page of another session or site has sent.
pub fn foreign() -> Problem {
    let message = "This form is of another session or another site, and nothing was done; open the page again, and send it from there";
    Problem::new(StatusCode::FORBIDDEN, message)
}

/// Another name for each copy of a form.
pub fn once() -> String {
    sandpiper_db::hex::encode(&rand::random::<[u8; 16]>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        Fields(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn fields_are_read_as_what_they_are() {
        let fields =
            fields(&[("a", " x "), ("n", "7"), ("m", "x"), ("empty", " "), ("envs", "A = 1\n\nB=x=y\n"), ("bad", "A")]);
        assert_eq!((fields.text("a"), fields.text("empty"), fields.text("none")), (Some("x"), None, None));
        assert_eq!(fields.exact("a"), " x ");
        assert_eq!((fields.number("n").unwrap(), fields.number("none").unwrap()), (Some(7), None));
        assert!(fields.number("m").is_err());
        assert_eq!(fields.pairs("envs").unwrap(), [("A", "1"), ("B", "x=y")]);
        assert!(fields.pairs("bad").is_err());
    }

    #[test]
    fn a_form_is_from_here_only_if_the_browser_says_so() {
        let from = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            is_from_here(&headers)
        };
        assert!(from(&[("sec-fetch-site", "same-origin")]));
        assert!(!from(&[("sec-fetch-site", "same-site")]));
        assert!(!from(&[("sec-fetch-site", "cross-site"), ("host", "a"), ("origin", "https://a")]));
        assert!(from(&[("host", "a:1"), ("origin", "http://a:1")]));
        assert!(!from(&[("host", "a"), ("origin", "https://p.a")]));
        assert!(!from(&[("host", "a"), ("origin", "null")]));
    }
}
