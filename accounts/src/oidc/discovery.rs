//! What the provider says of itself (OpenID Connect Discovery 1.0), with its keys, kept for a while.
//!
//! Whoever signs in waits for it at most once an hour. A provider that is away is asked again seconds later, and until then, for a
//! day, what it said before stands. An ID token under a key that is not known has the keys read again, once a minute at most: a
//! provider that has changed its keys is understood at once, and made-up keys do not make it busy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use openidconnect::core::{CoreJsonWebKeySet, CoreProviderMetadata};
use openidconnect::{DiscoveryError, IssuerUrl};
use tokio::sync::Semaphore;

use super::http::{Http, HttpError};
use super::settings::is_protected;

/// How long it stands without another look.
const FRESH: Duration = Duration::from_secs(3600);
/// How long it stands while the provider is away.
const USABLE: Duration = Duration::from_secs(24 * 3600);
/// From a look that failed to the next one.
const TRY_AGAIN: Duration = Duration::from_secs(3);
/// From one look for a key that is not known to the next one.
const KEYS_AGAIN: Duration = Duration::from_secs(60);

/// What the provider says of itself cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LookUpError {
    #[error("The provider could not be reached a moment ago")]
    Recently,
    #[error("The provider does not say who it is")]
    Failed(#[source] HttpError),
    #[error("The provider's document is not understood: {0}")]
    Malformed(String),
}

#[derive(Debug, Default)]
struct Seen {
    metadata: Option<(Arc<CoreProviderMetadata>, Instant)>,
    failed_at: Option<Instant>,
    keys_at: Option<Instant>,
}

impl Seen {
    fn within(&self, time: Duration) -> Option<Arc<CoreProviderMetadata>> {
        self.metadata.as_ref().filter(|(_, at)| at.elapsed() < time).map(|(metadata, _)| Arc::clone(metadata))
    }
}

/// What was seen last.
#[derive(Debug)]
pub struct Discovery {
    issuer: IssuerUrl,
    http: Http,
    seen: Mutex<Seen>,
    /// One look at a time.
    looks: Semaphore,
}

impl Discovery {
    /// Of this provider.
    pub fn new(issuer: IssuerUrl, http: Http) -> Self {
        Self { issuer, http, seen: Mutex::default(), looks: Semaphore::new(1) }
    }

    /// What the provider says of itself, with its keys.
    ///
    /// # Errors
    ///
    /// It is away, or says what makes no sense, and nothing is left from before.
    pub async fn metadata(&self) -> Result<Arc<CoreProviderMetadata>, LookUpError> {
        if let Some(metadata) = self.remembered() {
            return metadata;
        }
        // It is never closed; without a turn there are two looks, which is no harm.
        let _turn = self.looks.acquire().await.ok();
        if let Some(metadata) = self.remembered() {
            return metadata;
        }
        match self.look().await {
            Ok(metadata) => {
                let metadata = Arc::new(metadata);
                self.see(|seen| seen.metadata = Some((Arc::clone(&metadata), Instant::now())));
                Ok(metadata)
            }
            Err(error) => self.see(|seen| {
                seen.failed_at = Some(Instant::now());
                seen.within(USABLE).ok_or(error)
            }),
        }
    }

    /// Likewise, with keys that were read just now; `None` when that is too soon.
    ///
    /// # Errors
    ///
    /// The keys cannot be read.
    pub async fn with_new_keys(&self) -> Result<Option<Arc<CoreProviderMetadata>>, LookUpError> {
        let metadata = self.metadata().await?;
        let is_due = self.see(|seen| {
            let is_due = seen.keys_at.is_none_or(|at| at.elapsed() >= KEYS_AGAIN);
            if is_due {
                seen.keys_at = Some(Instant::now());
            }
            is_due
        });
        if !is_due {
            return Ok(None);
        }
        let keys = CoreJsonWebKeySet::fetch_async(metadata.jwks_uri(), &self.http).await.map_err(in_words)?;
        let metadata = Arc::new(CoreProviderMetadata::clone(&metadata).set_jwks(keys));
        self.see(|seen| {
            let at = seen.metadata.as_ref().map_or_else(Instant::now, |(_, at)| *at);
            seen.metadata = Some((Arc::clone(&metadata), at));
        });
        Ok(Some(metadata))
    }

    /// What is known without asking, if that is enough; an error where it is too soon to ask.
    fn remembered(&self) -> Option<Result<Arc<CoreProviderMetadata>, LookUpError>> {
        self.see(|seen| {
            let has_just_failed = seen.failed_at.is_some_and(|at| at.elapsed() < TRY_AGAIN);
            match seen.within(FRESH) {
                Some(metadata) => Some(Ok(metadata)),
                None if has_just_failed => Some(seen.within(USABLE).ok_or(LookUpError::Recently)),
                None => None,
            }
        })
    }

    async fn look(&self) -> Result<CoreProviderMetadata, LookUpError> {
        let metadata = CoreProviderMetadata::discover_async(self.issuer.clone(), &self.http).await.map_err(in_words)?;
        // A browser is sent there.
        if !is_protected(metadata.authorization_endpoint().url()) {
            return Err(LookUpError::Failed(HttpError::Unprotected));
        }
        Ok(metadata)
    }

    fn see<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Without what was sent: an operator's log does not hold whole documents.
fn in_words(error: DiscoveryError<HttpError>) -> LookUpError {
    match error {
        DiscoveryError::Request(error) => LookUpError::Failed(error),
        DiscoveryError::Parse(error) => LookUpError::Malformed(format!("{} is not as it must be", error.path())),
        DiscoveryError::Response(status, ..) => LookUpError::Malformed(format!("HTTP {status}")),
        DiscoveryError::Validation(problem) => LookUpError::Malformed(super::provider::excerpt(&problem)),
        _ => LookUpError::Malformed("it cannot be asked for".to_owned()),
    }
}
