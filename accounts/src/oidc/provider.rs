//! The provider: whither browsers are sent, and what is believed of whom it sends back.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreErrorResponseType, CoreGenderClaim, CoreIdToken,
    CoreIdTokenClaims, CoreJwsSigningAlgorithm, CoreProviderMetadata, CoreTokenResponse,
};
use openidconnect::{
    AccessToken, AccessTokenHash, AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret,
    CsrfToken, EmptyAdditionalClaims, EndUserEmail, EndUserName, EndpointMaybeSet, EndpointNotSet, EndpointSet,
    IssuerUrl, LocalizedClaim, Nonce, OAuth2TokenResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl,
    RequestTokenError, Scope, SignatureVerificationError, StandardErrorResponse, TokenResponse, UserInfoClaims,
    UserInfoError,
};
use sandpiper_protocol::error_chain::chain;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::discovery::{Discovery, LookUpError};
use super::http::{Http, HttpError};
use super::settings::{SecretError, Settings};
use super::transaction::{LASTS, Transaction};
use crate::email::Email;
use crate::sign_in::check_name;

/// Codes that are exchanged at a time.
const AT_A_TIME: usize = 16;
/// Longest wait for a turn.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Seconds that an ID token may be old, and that the provider's clock may be ahead of this host's.
const MAX_AGE: i64 = 600;
const MAX_AHEAD: i64 = 120;
/// Longest subject (OpenID Connect Core 1.0, 2), in bytes.
const MAX_SUBJECT: usize = 255;
/// What ID tokens may be signed with: what only the provider can make. Neither `none`, nor under the client's secret.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

type Client =
    CoreClient<EndpointSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointMaybeSet, EndpointMaybeSet>;
type UserInfo = UserInfoClaims<EmptyAdditionalClaims, CoreGenderClaim>;

/// Why there is no provider to ask.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("Cannot make a client of the provider of OpenID Connect")]
    Http(#[from] reqwest::Error),
    #[error("{0} is no URL")]
    Url(String),
}

/// Why somebody is not known after all.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("The provider does not respond")]
    Unreachable(#[from] LookUpError),
    #[error("Too many sign in at this moment")]
    Busy,
    #[error("The sign-in was begun elsewhere, or is over")]
    Foreign,
    #[error("The provider signed nobody in: {0}")]
    Denied(String),
    #[error("The provider does not take the code: {0}")]
    Code(String),
    #[error("The provider's response to the code cannot be had")]
    Token(#[source] HttpError),
    #[error("The provider's response is not believed: {0}")]
    Unbelievable(String),
}

/// An address, as the provider says of somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The provider has seen that it is theirs.
    Verified(Email),
    Unverified(Email),
    /// None, or one that is no address here.
    None,
}

/// Somebody whom the provider knows.
#[derive(Debug, Clone)]
pub struct Person {
    pub issuer: String,
    /// Never given to anybody else by this issuer.
    pub subject: String,
    pub address: Address,
    /// Empty where the provider tells none.
    pub name: String,
}

/// What a browser brings from the provider.
#[derive(Debug)]
pub struct Callback {
    pub state: String,
    pub code: Option<Zeroizing<String>>,
    /// Why there is no code (RFC 6749, 4.1.2.1).
    pub error: Option<String>,
    /// Who sent it (RFC 9207), from providers that say so.
    pub issuer: Option<String>,
}

/// The provider of the settings.
#[derive(Debug)]
pub struct Provider {
    pub settings: Settings,
    client_id: ClientId,
    secret: Option<ClientSecret>,
    redirect_url: RedirectUrl,
    http: Http,
    discovery: Discovery,
    turns: Semaphore,
}

impl Provider {
    /// Of these settings, which are good; it sends browsers back to `path` on this host. Each request to it ends within `timeout`.
    /// Nothing is asked yet.
    ///
    /// # Errors
    ///
    /// The client's secret or a client of HTTP cannot be had.
    pub fn open(settings: Settings, path: &str, timeout: Duration) -> Result<Self, OpenError> {
        let is_no_url = |text: &str| OpenError::Url(text.to_owned());
        let issuer = IssuerUrl::new(settings.issuer.clone()).map_err(|_| is_no_url(&settings.issuer))?;
        let redirect = format!("{}{path}", settings.origin);
        let redirect_url = RedirectUrl::new(redirect.clone()).map_err(|_| is_no_url(&redirect))?;
        let http = Http::new(timeout)?;
        Ok(Self {
            client_id: ClientId::new(settings.client_id.clone()),
            secret: settings.client_secret()?,
            redirect_url,
            discovery: Discovery::new(issuer, http.clone()),
            http,
            turns: Semaphore::new(AT_A_TIME),
            settings,
        })
    }

    /// Asks the provider who it is.
    ///
    /// # Errors
    ///
    /// It is away, or says what makes no sense.
    pub async fn reach(&self) -> Result<(), LookUpError> {
        self.discovery.metadata().await.map(drop)
    }

    /// The address to which it sends browsers back, which it has to know.
    pub fn redirect_url(&self) -> &str {
        &self.redirect_url
    }

    /// Begins a sign-in, by which an invitation may be accepted: what the browser keeps, and whither it goes.
    ///
    /// # Errors
    ///
    /// The provider cannot be asked who it is.
    pub async fn begin(&self, invitation: Option<String>, now: Timestamp) -> Result<(Transaction, String), Problem> {
        let metadata = self.discovery.metadata().await?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let client = self.client(&metadata);
        let request =
            client.authorize_url(CoreAuthenticationFlow::AuthorizationCode, CsrfToken::new_random, Nonce::new_random);
        let scopes = self.settings.scopes.iter().cloned().map(Scope::new);
        let (url, state, nonce) = request.add_scopes(scopes).set_pkce_challenge(challenge).url();
        let transaction = Transaction {
            issuer: self.settings.issuer.clone(),
            state,
            nonce,
            verifier,
            expires_at: now.saturating_add(LASTS).unwrap_or(Timestamp::MAX),
            invitation,
        };
        Ok((transaction, url.into()))
    }

    /// Ends the sign-in of this transaction: whom the provider has sent back.
    ///
    /// # Errors
    ///
    /// What the browser brings is of no sign-in of its own, the provider signed nobody in, or what it says is not believed.
    pub async fn complete(&self, transaction: Transaction, callback: Callback) -> Result<Person, Problem> {
        let issuer = &self.settings.issuer;
        let is_own = *transaction.state.secret() == callback.state && transaction.issuer == *issuer;
        if !is_own || callback.issuer.is_some_and(|named| named != *issuer) {
            return Err(Problem::Foreign);
        }
        let Some(code) = callback.code else {
            return Err(Problem::Denied(excerpt(&callback.error.unwrap_or_default())));
        };
        let _turn = self.turn().await?;
        let metadata = self.discovery.metadata().await?;
        let client = self.client(&metadata);
        let response = self.exchange(&client, &code, transaction.verifier).await?;
        let token = response.id_token().ok_or_else(|| unbelievable("it has no ID token"))?;
        let believe = |client: &Client| self.believe(client, token, &transaction.nonce, response.access_token());
        let claims = match believe(&client) {
            Err(Disbelief::UnknownKey) => match self.discovery.with_new_keys().await? {
                Some(metadata) => believe(&self.client(&metadata)),
                None => Err(Disbelief::UnknownKey),
            },
            believed => believed,
        }?;
        self.person(&client, claims, response.access_token()).await
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        let turn = timeout(MAX_WAIT, self.turns.acquire()).await;
        turn.map_err(|_| Problem::Busy)?.map_err(|_| Problem::Busy)
    }

    fn client(&self, metadata: &Arc<CoreProviderMetadata>) -> Client {
        let metadata = CoreProviderMetadata::clone(metadata);
        // As by default (OpenID Connect Discovery 1.0, 3), unless the provider takes the secret in the body alone.
        let methods = metadata.token_endpoint_auth_methods_supported();
        let has_basic = methods.is_none_or(|methods| methods.contains(&CoreClientAuthMethod::ClientSecretBasic));
        let authentication = if has_basic { AuthType::BasicAuth } else { AuthType::RequestBody };
        CoreClient::from_provider_metadata(metadata, self.client_id.clone(), self.secret.clone())
            .set_auth_type(authentication)
            .set_redirect_uri(self.redirect_url.clone())
    }

    async fn exchange(
        &self,
        client: &Client,
        code: &str,
        verifier: PkceCodeVerifier,
    ) -> Result<CoreTokenResponse, Problem> {
        let request = client.exchange_code(AuthorizationCode::new(code.to_owned()));
        let request = request.map_err(|_| unbelievable("it says nowhere to what address codes are sent"))?;
        request.set_pkce_verifier(verifier).request_async(&self.http).await.map_err(refused)
    }

    /// The claims of an ID token, if all of it is as it must be (OpenID Connect Core 1.0, 3.1.3.7).
    fn believe<'a>(
        &self,
        client: &Client,
        token: &'a CoreIdToken,
        nonce: &Nonce,
        access_token: &AccessToken,
    ) -> Result<&'a CoreIdTokenClaims, Disbelief> {
        let now = Timestamp::now().as_second();
        let verifier = client.id_token_verifier().set_allowed_algs(ALGORITHMS).set_issue_time_verifier_fn(|at| {
            let is_fresh = (now - MAX_AGE..=now + MAX_AHEAD).contains(&at.timestamp());
            if is_fresh { Ok(()) } else { Err("not issued just now".to_owned()) }
        });
        let claims = token.claims(&verifier, nonce)?;
        if claims.authorized_party().is_some_and(|party| *party != self.client_id) {
            return Err(Disbelief::Other("it is for another client".to_owned()));
        }
        if let Some(hash) = claims.access_token_hash() {
            let failed = |problem: String| Disbelief::Other(problem);
            let algorithm = token.signing_alg().map_err(|error| failed(error.to_string()))?;
            let key = token.signing_key(&verifier).map_err(|error| failed(error.to_string()))?;
            let own = AccessTokenHash::from_token(access_token, algorithm, key);
            if own.map_err(|error| failed(error.to_string()))? != *hash {
                return Err(Disbelief::Other("the access token is not the one that it is for".to_owned()));
            }
        }
        Ok(claims)
    }

    async fn person(
        &self,
        client: &Client,
        claims: &CoreIdTokenClaims,
        access_token: &AccessToken,
    ) -> Result<Person, Problem> {
        let subject = claims.subject().as_str();
        if subject.is_empty() || subject.len() > MAX_SUBJECT || subject.contains(char::is_control) {
            return Err(unbelievable("its subject is none"));
        }
        let told = Told { email: claims.email(), is_verified: claims.email_verified(), name: claims.name() };
        let (address, name) = match told.email {
            Some(_) => told.read(),
            None => match self.user_info(client, claims, access_token).await {
                Some(more) => {
                    let told = Told { email: more.email(), is_verified: more.email_verified(), name: more.name() };
                    told.read()
                }
                None => told.read(),
            },
        };
        Ok(Person { issuer: self.settings.issuer.clone(), subject: subject.to_owned(), address, name })
    }

    /// What some providers tell there alone. Somebody who is known needs none of it.
    async fn user_info(
        &self,
        client: &Client,
        claims: &CoreIdTokenClaims,
        access_token: &AccessToken,
    ) -> Option<UserInfo> {
        let request = client.user_info(access_token.clone(), Some(claims.subject().clone())).ok()?;
        match request.request_async(&self.http).await {
            Ok(found) => Some(found),
            Err(error) => {
                let problem = match error {
                    UserInfoError::Request(error) => chain(&error),
                    UserInfoError::ClaimsVerification(error) => excerpt(&chain(&error)),
                    UserInfoError::Parse(error) => format!("{} is not as it must be", error.path()),
                    UserInfoError::Response(status, ..) => format!("HTTP {status}"),
                    _ => "it cannot be asked for".to_owned(),
                };
                tracing::warn!(problem, "the provider of OpenID Connect does not tell of somebody");
                None
            }
        }
    }
}

/// What is told of somebody in an ID token, or beside it.
struct Told<'a> {
    email: Option<&'a EndUserEmail>,
    is_verified: Option<bool>,
    name: Option<&'a LocalizedClaim<EndUserName>>,
}

impl Told<'_> {
    fn read(&self) -> (Address, String) {
        // Letters that only look like others, or become others in lower case, would name another user.
        let email = self.email.filter(|email| email.is_ascii()).and_then(|email| email.parse::<Email>().ok());
        let address = match email {
            Some(email) if self.is_verified == Some(true) => Address::Verified(email),
            Some(email) => Address::Unverified(email),
            None => Address::None,
        };
        let name = self.name.and_then(|names| names.get(None)).map(|name| name.trim().to_owned());
        (address, name.filter(|name| check_name(name).is_ok()).unwrap_or_default())
    }
}

/// Why an ID token is not believed.
enum Disbelief {
    UnknownKey,
    Other(String),
}

impl From<ClaimsVerificationError> for Disbelief {
    fn from(error: ClaimsVerificationError) -> Self {
        match error {
            ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey) => {
                Self::UnknownKey
            }
            error => Self::Other(chain(&error)),
        }
    }
}

impl From<Disbelief> for Problem {
    fn from(disbelief: Disbelief) -> Self {
        match disbelief {
            Disbelief::UnknownKey => unbelievable("the ID token is under a key that is not the provider's"),
            Disbelief::Other(problem) => unbelievable(&problem),
        }
    }
}

fn unbelievable(problem: &str) -> Problem {
    Problem::Unbelievable(excerpt(problem))
}

/// Without what was sent, which holds tokens.
fn refused(error: RequestTokenError<HttpError, StandardErrorResponse<CoreErrorResponseType>>) -> Problem {
    match error {
        RequestTokenError::ServerResponse(response) => Problem::Code(excerpt(response.error().as_ref())),
        RequestTokenError::Request(error) => Problem::Token(error),
        RequestTokenError::Parse(error, _) => unbelievable(&format!("{} is not as it must be", error.path())),
        RequestTokenError::Other(_) => unbelievable("it is no response to a code"),
    }
}

/// A stranger's words, for the log: few, and on one line.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(email: &str, is_verified: Option<bool>) -> Address {
        let email = EndUserEmail::new(email.to_owned());
        Told { email: Some(&email), is_verified, name: None }.read().0
    }

    #[test]
    fn only_what_the_provider_says_outright_is_verified() {
        let ada: Email = "ada@example.com".parse().unwrap();
        assert_eq!(told("Ada@Example.com", Some(true)), Address::Verified(ada.clone()));
        assert_eq!(told("ada@example.com", Some(false)), Address::Unverified(ada.clone()));
        assert_eq!(told("ada@example.com", None), Address::Unverified(ada));
    }

    #[test]
    fn an_address_of_letters_that_become_others_is_none() {
        // The Kelvin sign, a small k in lower case.
        assert_eq!(told("fran\u{212a}@example.com", Some(true)), Address::None);
        assert_eq!(told("nobody", Some(true)), Address::None);
    }

    #[test]
    fn a_strangers_words_are_few_and_on_one_line() {
        assert_eq!(excerpt("a\nb\u{1b}[0m"), "a\\nb\\u{1b}[0m");
        assert_eq!(excerpt(&"x".repeat(1000)).len(), 200);
    }
}
