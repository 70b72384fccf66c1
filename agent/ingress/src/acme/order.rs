//! One order, from the account to the certificate.
//!
//! ```text
//!   (none) ──▶ pending ────────▶ ready ───────▶ processing ──▶ valid ──▶ certificate stored, order forgotten
//!     │           │  hook: present  │  key made,              ▲
//!     └ written   └  "look now"     └  request sent ──────────┘      whatever the end: hook: cleanup
//! ```
//!
//! The issuer keeps the state; here only what it cannot know is written down.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order, OrderStatus,
    RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use sandpiper_protocol::error_chain;
use tracing::{debug, warn};

use super::hook::{self, Action, Record};
use super::store::{SavedAccount, SavedOrder};
use super::{Acme, AcmeError};

/// How the issuer is asked whether it is done.
const POLLING: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).timeout(Duration::from_secs(600));

impl Acme {
    /// Gets a certificate and stores it. Goes on with the order under way, if there is one.
    pub(crate) async fn obtain(&self) -> Result<(), AcmeError> {
        let account = self.account().await?;
        let (mut order, mut saved) = self.order(&account).await?;
        let result = self.pursue(&mut order, &mut saved).await;
        self.clean_up(&saved).await;
        saved.records.clear();
        match result {
            Ok((chain, key)) => {
                self.store.write_bundle(&chain, &key).await?;
                self.store.remove_order().await?;
                Ok(())
            }
            Err(error) => {
                // What the issuer has ended, or will not go on with, does not come back to life; anything else may.
                let ended = order.state().status == OrderStatus::Invalid
                    || matches!(error, AcmeError::NotAuthorized { .. } | AcmeError::NoDnsChallenge { .. });
                let written = match ended {
                    true => self.store.remove_order().await,
                    false => self.store.write_order(&saved).await,
                };
                if let Err(error) = written {
                    warn!(error = %error_chain::chain(&error), "The order's records may be removed from the DNS again");
                }
                Err(error)
            }
        }
    }

    async fn account(&self) -> Result<Account, AcmeError> {
        let builder = match &self.config.root {
            Some(root) => Account::builder_with_root(root)?,
            None => Account::builder()?,
        };
        let directory = &self.config.directory;
        if let Some(saved) = self.store.read_account().await?.filter(|saved| saved.directory == *directory) {
            return Ok(builder.from_credentials(saved.credentials).await?);
        }
        let contact: Vec<&str> = self.config.contact.iter().map(String::as_str).collect();
        let account = NewAccount {
            contact: &contact,
            terms_of_service_agreed: self.config.agree_to_terms,
            only_return_existing: false,
        };
        let (account, credentials) = builder.create(&account, directory.clone(), None).await?;
        self.store.write_account(&SavedAccount { directory: directory.clone(), credentials }).await?;
        Ok(account)
    }

    /// The order under way, or a new one.
    async fn order(&self, account: &Account) -> Result<(Order, SavedOrder), AcmeError> {
        if let Some(saved) = self.store.read_order().await? {
            match self.resume(account, &saved).await? {
                Some(order) => return Ok((order, saved)),
                None => self.clean_up(&saved).await,
            }
        }
        let names = [&self.host, &format!("*.{}", self.host)].map(|name| Identifier::Dns(name.clone()));
        let order = account.new_order(&NewOrder::new(&names)).await?;
        let url = order.url().to_owned();
        let saved = SavedOrder { directory: self.config.directory.clone(), url, ..SavedOrder::default() };
        self.store.write_order(&saved).await?;
        Ok((order, saved))
    }

    /// The saved order as the issuer has it; `None` when it is no longer of use.
    async fn resume(&self, account: &Account, saved: &SavedOrder) -> Result<Option<Order>, AcmeError> {
        if saved.directory != self.config.directory {
            return Ok(None);
        }
        match account.order(saved.url.clone()).await {
            Ok(mut order) => {
                let state = order.state();
                // A certificate for a key that is gone is of no use either.
                let asked = matches!(state.status, OrderStatus::Processing | OrderStatus::Valid);
                let usable = state.status != OrderStatus::Invalid && (!asked || saved.key.is_some());
                Ok(usable.then_some(order))
            }
            // It has expired, for example, and was forgotten.
            Err(instant_acme::Error::Api(problem)) => {
                debug!(%problem, "An ACME order cannot be resumed");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the order from where it is to its certificate: PEM of the chain and of the key.
    async fn pursue(&self, order: &mut Order, saved: &mut SavedOrder) -> Result<(String, String), AcmeError> {
        if order.state().status == OrderStatus::Pending {
            self.authorize(order, saved).await?;
            if order.poll_ready(&POLLING).await? != OrderStatus::Ready {
                return Err(AcmeError::Rejected);
            }
        }
        let key = match saved.key.take() {
            Some(key) => key,
            None => KeyPair::generate()?.serialize_pem(),
        };
        saved.key = Some(key.clone());
        self.store.write_order(saved).await?;
        if order.state().status == OrderStatus::Ready {
            let mut params = CertificateParams::new([self.host.clone(), format!("*.{}", self.host)])?;
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request(&KeyPair::from_pem(&key)?)?;
            order.finalize_csr(request.der()).await?;
        }
        match order.state().status {
            OrderStatus::Invalid => Err(AcmeError::Rejected),
            _ => Ok((order.poll_certificate(&POLLING).await?, key)),
        }
    }

    /// Publishes what the issuer wants to see, and asks it to look.
    async fn authorize(&self, order: &mut Order, saved: &mut SavedOrder) -> Result<(), AcmeError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            let name = authorization.identifier().to_string();
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err(AcmeError::NotAuthorized { name }),
            }
            let challenge = authorization.challenge(ChallengeType::Dns01);
            let challenge = challenge.ok_or_else(|| AcmeError::NoDnsChallenge { name: name.clone() })?;
            let record = Record {
                // The name and everything below it are proved at the same place.
                name: format!("_acme-challenge.{}", name.trim_start_matches("*.")),
                value: challenge.key_authorization().dns_value(),
            };
            if !saved.records.contains(&record) {
                saved.records.push(record.clone());
                self.store.write_order(saved).await?;
            }
            hook::call(&self.config, Action::Present, &record).await?;
        }
        tokio::time::sleep(self.config.propagation()).await;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            let challenge = authorization.challenge(ChallengeType::Dns01);
            if let Some(mut challenge) = challenge.filter(|challenge| challenge.status == ChallengeStatus::Pending) {
                challenge.set_ready().await?;
            }
        }
        Ok(())
    }

    /// Removes the records of an order from the DNS. One that stays does no harm, so it is only reported.
    async fn clean_up(&self, saved: &SavedOrder) {
        for record in &saved.records {
            if let Err(error) = hook::call(&self.config, Action::Cleanup, record).await {
                warn!(name = record.name, error = %error_chain::chain(&error), "A DNS record was not removed");
            }
        }
    }
}
