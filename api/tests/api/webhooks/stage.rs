//! One API host with a merchant, and workers that send into a world of the test's own.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::audit;
use sandpiper_payments::delivery::addresses::AddressRule;
use sandpiper_payments::delivery::connection::Connector;
use sandpiper_payments::delivery::jitter::Jitter;
use sandpiper_payments::delivery::resolver::{Resolve, Resolver, Resolving};
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::delivery::{Dependencies, trust};
use sandpiper_payments::domain::ids::{MerchantId, MerchantKeyId};
use sandpiper_payments::domain::order::{PaymentOrder, Status};
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::merchant::keys;
use sandpiper_payments::store::deliveries::{AttemptRow, DeliveryId, DeliveryRow};
use sandpiper_payments::store::merchant_keys::{Kind, MerchantKeyRecord, NewMerchantKey};
use sandpiper_payments::store::merchants::MerchantChange;
use sandpiper_payments::store::payments::{Accepted, PaymentUpdate};
use sandpiper_payments::store::webhook_endpoints::EndpointKey;
use sandpiper_webhook::SigningKey;

use super::receiver::{Received, Receiver};
use crate::support::Host;

/// Of an attempt, in tests that wait for it. The real one is 30 s.
pub(crate) const LIMIT: Duration = Duration::from_millis(600);

/// The host and its merchant.
pub(crate) struct Stage {
    pub(crate) host: Host,
    pub(crate) merchant_id: String,
}

/// A name service that says what it is told to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Arc<Mutex<Vec<IpAddr>>>);

impl Names {
    pub(crate) fn say(&self, addresses: &[&str]) {
        *self.0.lock().unwrap() = addresses.iter().map(|address| address.parse().unwrap()).collect();
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        let addresses = self.0.lock().unwrap().clone();
        Box::pin(async move { Ok(addresses) })
    }
}

/// The world of a test: this machine may be sent to, and these receivers are trusted.
pub(crate) fn dependencies(receivers: &[&Receiver]) -> Dependencies {
    dependencies_with(receivers, Names::default(), AddressRule::new(vec!["127.0.0.0/8".parse().unwrap()]))
}

/// Likewise, with names and rules of the test's own.
pub(crate) fn dependencies_with(receivers: &[&Receiver], names: Names, rule: AddressRule) -> Dependencies {
    let tls = trust::only(receivers.iter().map(|receiver| receiver.root.clone())).unwrap();
    Dependencies {
        connector: Connector { resolver: Resolver::new(names), rule, tls },
        jitter: Jitter::from_fn(|| 0.0),
        attempt_limit: LIMIT,
    }
}

impl Stage {
    /// A host that may send to this machine, and a merchant with a secret key in each realm and no URL.
    pub(crate) async fn new() -> Self {
        let host = Host::with(|config| {
            config.webhooks.allow_addresses = vec!["127.0.0.0/8".parse().unwrap()];
        })
        .await;
        Self::on(host).await
    }

    pub(crate) async fn on(host: Host) -> Self {
        let merchant_id = merchant(&host, "shop").await;
        Self { host, merchant_id }
    }

    /// Likewise with the realm's URL.
    pub(crate) async fn towards(receiver: &Receiver) -> Self {
        let stage = Self::new().await;
        stage.configure(Realm::Live, Some(&receiver.url())).await;
        stage
    }

    pub(crate) fn endpoint(&self, realm: Realm) -> EndpointKey {
        EndpointKey { merchant_id: self.merchant_id.clone(), realm }
    }

    pub(crate) async fn configure(&self, realm: Realm, url: Option<&str>) {
        configure(&self.host, self.endpoint(realm), url).await;
    }

    pub(crate) fn worker(&self, receiver: &Receiver) -> Worker {
        self.worker_for(&[receiver])
    }

    pub(crate) fn worker_for(&self, receivers: &[&Receiver]) -> Worker {
        Worker::new(self.host.payments.webhooks.clone(), dependencies(receivers))
    }

    /// Reports that a live payment is COMPLETED; its delivery.
    pub(crate) async fn pay(&self, id: &str) -> DeliveryId {
        self.update(Realm::Live, &order(id, Status::Completed, 1)).await.unwrap()
    }

    /// Reports a payment; its delivery.
    pub(crate) async fn update(&self, realm: Realm, order: &PaymentOrder) -> Option<DeliveryId> {
        report(&self.host, &self.merchant_id, realm, order).await
    }

    pub(crate) async fn delivery(&self, id: &DeliveryId) -> DeliveryRow {
        self.host.payments.store.deliveries.get(id.as_str()).await.unwrap().unwrap()
    }

    pub(crate) async fn attempts(&self, id: &DeliveryId) -> Vec<AttemptRow> {
        self.host.payments.store.deliveries.attempts(id.as_str()).await.unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.host.payments.clock.now()
    }

    /// Moves the clock to when the next attempt is due; false when none is.
    pub(crate) async fn pass_to_next(&self) -> bool {
        let Some(due) = self.host.payments.store.webhook_endpoints.next_due().await.unwrap() else { return false };
        self.host.pass(due.duration_since(self.now()).max(SignedDuration::ZERO) + SignedDuration::from_millis(1));
        true
    }

    /// The key that signs now.
    pub(crate) async fn signing_key(&self, realm: Realm) -> SigningKey {
        let (app, endpoint) = (&self.host.payments, self.endpoint(realm));
        let mut keys = app.store.merchant_keys.signing_keys(&app.vault, [&endpoint]).await.unwrap();
        keys.remove(&endpoint).unwrap().unwrap()
    }

    /// A public key of the realm.
    pub(crate) async fn public_key(&self, realm: Realm) -> String {
        let key = keys::generate(realm, Kind::Public);
        let hash = keys::hash(&key).unwrap();
        let id = MerchantKeyId::generate();
        let new = NewMerchantKey {
            id: &id,
            merchant_id: &self.merchant_id.as_str().into(),
            realm,
            kind: Kind::Public,
            hash: &hash,
            sealed: None,
        };
        self.host.payments.store.merchant_keys.create(&new, self.now()).await.unwrap();
        key.to_string()
    }

    /// Gives the realm another secret key; it.
    pub(crate) async fn rotate(&self, realm: Realm) -> String {
        let keys =
            self.host.payments.store.merchant_keys.list(&self.merchant_id.as_str().into(), "", 100).await.unwrap();
        let old = keys.iter().find(|key| signs(key, realm)).unwrap();
        let fresh = FreshKey::new(&self.host, realm);
        let merchant_id = self.merchant_id.as_str().into();
        let new = fresh.of(&merchant_id);
        let rotated = self.host.payments.store.merchant_keys.rotate(&old.id, &new, self.now());
        assert!(rotated.await.unwrap());
        fresh.key
    }

    /// Gives the realm a secret key where it has none.
    pub(crate) async fn grant(&self, realm: Realm) {
        let fresh = FreshKey::new(&self.host, realm);
        self.host
            .payments
            .store
            .merchant_keys
            .create(&fresh.of(&self.merchant_id.as_str().into()), self.now())
            .await
            .unwrap();
    }

    /// Ends the realm's secret key without another in its place.
    pub(crate) async fn revoke(&self, realm: Realm) {
        let keys =
            self.host.payments.store.merchant_keys.list(&self.merchant_id.as_str().into(), "", 100).await.unwrap();
        let key = keys.iter().find(|key| signs(key, realm)).unwrap();
        assert!(
            self.host
                .payments
                .store
                .merchant_keys
                .revoke(&self.merchant_id.as_str().into(), &key.id, self.now())
                .await
                .unwrap()
        );
    }

    /// Whether a request was signed by this key.
    pub(crate) fn is_signed_by(&self, key: &SigningKey, request: &Received) -> bool {
        let headers = request.headers("x-webhook-signature");
        sandpiper_webhook::verify(key, headers, &request.body, self.now().as_second(), 600).is_ok()
    }
}

/// Whether it is the secret key of the realm.
fn signs(key: &MerchantKeyRecord, realm: Realm) -> bool {
    key.realm == realm && key.kind == Kind::Secret && key.revoked_at.is_none()
}

/// A merchant with a secret key in each realm.
pub(crate) async fn merchant(host: &Host, name: &str) -> String {
    let store = &host.payments.store;
    let merchant_id =
        store.merchants.create(name, &MerchantChange::default(), host.payments.clock.now()).await.unwrap();
    for realm in Realm::ALL {
        let fresh = FreshKey::new(host, realm);
        store.merchant_keys.create(&fresh.of(&merchant_id.as_str().into()), host.payments.clock.now()).await.unwrap();
    }
    merchant_id
}

/// Configures a URL past the checks that requests go through.
pub(crate) async fn configure(host: &Host, endpoint: EndpointKey, url: Option<&str>) {
    let now = host.payments.clock.now();
    let entry = audit::Entry {
        at: now,
        team_id: endpoint.merchant_id.clone(),
        key_id: "key".to_owned(),
        user_id: None,
        request_id: "request".to_owned(),
        action: "test".to_owned(),
        resource: None,
        status: 200,
    };
    host.payments.store.webhook_endpoints.configure(endpoint, url.map(str::to_owned), entry, now).await.unwrap();
}

/// Reports a payment as the operator does; its delivery.
pub(crate) async fn report(host: &Host, merchant_id: &str, realm: Realm, order: &PaymentOrder) -> Option<DeliveryId> {
    let now = host.payments.clock.now();
    let update = PaymentUpdate { merchant_id: merchant_id.to_owned(), realm, order: order.clone() };
    let entry = audit::Entry {
        at: now,
        team_id: audit::OPERATOR.to_owned(),
        key_id: "key".to_owned(),
        user_id: None,
        request_id: "request".to_owned(),
        action: "test".to_owned(),
        resource: None,
        status: 0,
    };
    let accepted = host.payments.store.payments.put(update, entry, now).await.unwrap();
    host.payments.webhooks.wake();
    match accepted {
        Accepted::Created(id) | Accepted::Updated(id) | Accepted::Repeated(id) => id,
    }
}

/// A payment order that was updated so many seconds after its making.
pub(crate) fn order(id: &str, status: Status, updated_second: i64) -> PaymentOrder {
    let created_at = Timestamp::from_second(1_700_000_000).unwrap();
    PaymentOrder {
        id: id.to_owned(),
        status,
        amount: "1500.00".parse().unwrap(),
        actual_amount: (status == Status::Completed).then(|| "1500.00".parse().unwrap()),
        currency_code: "KES".to_owned(),
        country_code: "KE".to_owned(),
        payment_method: "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER".to_owned(),
        operator: None,
        bank_code: None,
        mobile_money_transfer_details: None,
        created_at,
        updated_at: created_at + SignedDuration::from_secs(updated_second),
        metadata: Default::default(),
    }
}

/// A secret key to be stored.
struct FreshKey {
    id: MerchantKeyId,
    key: String,
    realm: Realm,
    hash: String,
    sealed: String,
}

impl FreshKey {
    fn new(host: &Host, realm: Realm) -> Self {
        let id = MerchantKeyId::generate();
        let key = keys::generate(realm, Kind::Secret);
        let sealed = host.payments.vault.seal(&id, key.as_bytes()).unwrap();
        Self { id, realm, hash: keys::hash(&key).unwrap(), sealed, key: key.to_string() }
    }

    fn of<'a>(&'a self, merchant_id: &'a MerchantId) -> NewMerchantKey<'a> {
        NewMerchantKey {
            id: &self.id,
            merchant_id,
            realm: self.realm,
            kind: Kind::Secret,
            hash: &self.hash,
            sealed: Some(&self.sealed),
        }
    }
}
