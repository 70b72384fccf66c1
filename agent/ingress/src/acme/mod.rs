//! Certificates that the agent orders and renews itself, from an issuer that speaks ACME (RFC 8555).
//!
//! ```text
//!   <state_dir>/acme/account.json         our account at the issuer, and its key
//!   <state_dir>/acme/<host>.order.json    the order under way: where it is, its DNS records, its key
//!   <state_dir>/acme/<host>.pem           the certificate, its chain and its key; what the listener serves
//! ```
//!
//! All have mode 0600. The certificate is for the data-plane host and everything one label below it; only a DNS record can
//! prove a wildcard, so that is the one challenge used, and a program of the operator's, the [`hook`], sets the records.
//!
//! An [`order`] is written down before each step that the issuer or the DNS will remember. So an agent that died in the
//! middle goes on with the same order, and removes the records that it had set; the issuer's limits are spent on progress.
//!
//! A certificate is renewed when two thirds of its life are over, give or take, so that a fleet does not come all at once.
//! What fails is tried again, ever later. All the while the listener serves what it has.

mod hook;
mod order;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sandpiper_protocol::error_chain;
use tracing::{info, warn};

use self::hook::HookError;
use self::store::{Store, StoreError};
use super::config::AcmeConfig;
use super::tls::Certificates;

/// All of one attempt. The issuer's client knows no limit of its own.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3600);
/// At most this long between looks at the clock, which may be set.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
const FIRST_RETRY: Duration = Duration::from_secs(60);
const LAST_RETRY: Duration = Duration::from_secs(6 * 3600);

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcmeError {
    #[error("The order could not be stored or read")]
    Store(#[from] StoreError),
    #[error("The issuer refused or could not be asked")]
    Issuer(#[from] instant_acme::Error),
    #[error("The DNS record could not be set")]
    Hook(#[from] HookError),
    #[error("The issuer offers no dns-01 challenge for {name}")]
    NoDnsChallenge { name: String },
    #[error("The issuer does not believe that {name} is ours: see that the hook publishes its TXT record")]
    NotAuthorized { name: String },
    #[error("The issuer ended the order as invalid: see that the hook publishes the TXT records")]
    Rejected,
    #[error("The certificate request could not be made")]
    Request(#[from] rcgen::Error),
    #[error("It took longer than {} minutes", ATTEMPT_TIMEOUT.as_secs() / 60)]
    TimedOut,
}

/// Where the certificate of `host` is, once there is one, and its key too.
pub(super) fn bundle(state_dir: &Path, host: &str) -> PathBuf {
    Store::new(state_dir, host).bundle()
}

/// Orders and renews the certificate of one data-plane host.
pub(super) struct Acme {
    config: AcmeConfig,
    host: String,
    store: Store,
    /// Where in the last part of a certificate's life it is renewed, from 0 to 1.
    jitter: f64,
}

impl Acme {
    pub(super) fn new(config: AcmeConfig, state_dir: &Path, host: &str) -> Acme {
        Acme { config, host: host.to_owned(), store: Store::new(state_dir, host), jitter: rand::random() }
    }

    /// Keeps the certificate fresh, for ever, and has `served` take over each new one.
    pub(super) async fn run(self, served: Arc<Certificates>) {
        // In vain so far: each is only taken back when there is a certificate with some life before it. So an issuer of
        // old certificates, or a host with a wrong clock, does not order without end.
        let mut attempts = 0;
        loop {
            let wait = match self.time_left().await {
                Some(left) => {
                    attempts = 0;
                    left.min(LOOK_INTERVAL)
                }
                None => {
                    attempts += 1;
                    let next = retry_after(attempts, rand::random());
                    match self.attempt().await {
                        Ok(()) => {
                            info!(host = self.host, "A new certificate was issued");
                            served.clone().look_now().await;
                        }
                        Err(error) => {
                            let error = error_chain::chain(&error);
                            warn!(host = self.host, ?next, error, "No certificate was issued");
                        }
                    }
                    next
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&self) -> Result<(), AcmeError> {
        match tokio::time::timeout(ATTEMPT_TIMEOUT, self.obtain()).await {
            Ok(result) => result,
            Err(_) => Err(AcmeError::TimedOut),
        }
    }

    /// Until it is time for another certificate; `None` when it is, or where there is none that can be read.
    async fn time_left(&self) -> Option<Duration> {
        let bundle = self.store.read_bundle().await.ok().flatten()?;
        let leaf = CertificateDer::from_pem_slice(&bundle).ok()?;
        let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).ok()?;
        let validity = leaf.validity();
        let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let due = renewal_time(u64::try_from(from).ok()?, u64::try_from(until).ok()?, self.jitter)?;
        due.duration_since(SystemTime::now()).ok()
    }
}

/// After two thirds of a life `from` one second of the epoch `until` another, and up to a twentieth of it later.
fn renewal_time(from: u64, until: u64, jitter: f64) -> Option<SystemTime> {
    let life = Duration::from_secs(until.checked_sub(from)?);
    let age = life * 2 / 3 + (life / 20).mul_f64(jitter.clamp(0.0, 1.0));
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(from))?.checked_add(age)
}

/// Twice as long after each failure, up to a limit, and a quarter more or less by `jitter`, from 0 to 1.
fn retry_after(failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let wait = FIRST_RETRY.saturating_mul(1 << doublings).min(LAST_RETRY);
    wait.mul_f64(0.75 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn a_certificate_is_renewed_in_the_last_third_of_its_life() {
        let after = |jitter| {
            let due = renewal_time(1000 * DAY, 1090 * DAY, jitter).expect("a life");
            due.duration_since(SystemTime::UNIX_EPOCH).expect("later").as_secs() / DAY - 1000
        };
        assert_eq!((after(0.0), after(0.999), after(7.0)), (60, 64, 64));
        assert_eq!(renewal_time(2 * DAY, DAY, 0.0), None, "a life that ends before it begins");
    }

    #[test]
    fn failures_are_repeated_ever_later() {
        let seconds = |failures, jitter| retry_after(failures, jitter).as_secs();
        assert_eq!((seconds(1, 0.5), seconds(2, 0.5), seconds(4, 0.5)), (60, 120, 480));
        assert_eq!((seconds(1, 0.0), seconds(1, 1.0)), (45, 75));
        assert_eq!((seconds(20, 0.5), seconds(u32::MAX, 0.5)), (6 * 3600, 6 * 3600));
    }
}
