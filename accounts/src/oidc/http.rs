//! Requests to the provider: each ends within seconds, and no response is longer than such documents are.

use std::pin::Pin;
use std::time::Duration;

use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use url::Url;

use super::settings::is_protected;

/// Longest response, in bytes: sets of keys have a few KiB.
const MAX_RESPONSE: usize = 256 * 1024;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("The provider names an address that is neither of TLS nor of this machine")]
    Unprotected,
    #[error("The response has more than {MAX_RESPONSE} bytes")]
    TooLong,
    #[error("No response")]
    Failed(#[source] reqwest::Error),
    #[error("The response makes no sense")]
    Malformed(#[source] openidconnect::http::Error),
}

/// The client; cheap to clone.
#[derive(Debug, Clone)]
pub struct Http(reqwest::Client);

impl Http {
    /// One whose requests end with their responses within `timeout`. It follows no redirect: no provider has to, and whither is not the
    /// operator's word.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        let builder = reqwest::Client::builder().no_proxy().timeout(timeout);
        Ok(Self(builder.redirect(reqwest::redirect::Policy::none()).build()?))
    }

    /// Sends a request, and reads the response.
    ///
    /// # Errors
    ///
    /// There is none in time, it is too long, or the request would be readable on its way.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_safe = Url::parse(&request.uri().to_string()).is_ok_and(|url| is_protected(&url));
        if !is_safe {
            return Err(HttpError::Unprotected);
        }
        // Without the address: it may bear what is secret.
        let failed = |error: reqwest::Error| HttpError::Failed(error.without_url());
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        let mut response = self.0.execute(request).await.map_err(failed)?;
        let mut built = openidconnect::http::Response::builder().status(response.status());
        for (name, value) in response.headers() {
            built = built.header(name, value);
        }
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            if body.len() + piece.len() > MAX_RESPONSE {
                return Err(HttpError::TooLong);
            }
            body.extend_from_slice(&piece);
        }
        built.body(body).map_err(HttpError::Malformed)
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}
