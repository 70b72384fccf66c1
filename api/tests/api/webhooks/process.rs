//! The real process: what is configured in its file, and what it logs.

use sandpiper_db::testing::TestDatabase;
use serde_json::json;

use super::receiver::{Reaction, Receiver};
use super::server::{Server, operator_key, write_config};
use crate::support::eventually;

#[tokio::test]
async fn a_reported_payment_arrives_and_no_secret_is_in_the_log() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number == 0 { 400 } else { 200 })).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let operator = operator_key(&config);
    // All that can be logged.
    let server = Server::start(&config, "trace").await;

    let (id, secret) = server.merchant(&operator, "shop", &receiver.url()).await;
    let mut payment = json!({
        "merchantId": id, "realm": "live", "status": "COMPLETED", "amount": "1500.00", "actualAmount": "1500.00",
        "currencyCode": "KES", "countryCode": "KE", "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY",
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:01Z",
    });
    let refused = server.send("PUT", "/operator/v1/payments/pay_1", &operator, &payment).await;
    eventually("the first webhook", async || receiver.count() == 1).await;
    payment["actualAmount"] = "1400.00".into();
    payment["updatedAt"] = "2026-01-01T00:00:02Z".into();
    let taken = server.send("PUT", "/operator/v1/payments/pay_1", &operator, &payment).await;
    eventually("the second webhook", async || receiver.count() == 2).await;

    let received = receiver.received();
    assert_eq!(received[0].key(), refused["deliveryId"].as_str().unwrap());
    assert_eq!(received[1].key(), taken["deliveryId"].as_str().unwrap());
    let key = sandpiper_webhook::SigningKey::from_api_key(&secret).unwrap();
    for request in &received {
        let headers = request.headers("x-webhook-signature");
        let now = jiff::Timestamp::now().as_second();
        assert_eq!(sandpiper_webhook::verify(&key, headers, &request.body, now, 600), Ok(()));
    }
    eventually("both results in the log", async || {
        let log = server.log();
        log.contains("webhook refused") && log.contains("webhook delivered")
    })
    .await;
    let log = server.log();
    assert!(log.contains("for development only"), "what is allowed is said aloud");
    let line = log.lines().find(|line| line.contains("webhook refused")).unwrap();
    for part in [received[0].key().as_str(), &id, "realm=live", "attempt=1", "outcome=\"failed\"", "status=400"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    for secret in [&secret["sk_prod_".len()..], &operator["opk_".len()..]] {
        assert!(!log.contains(secret), "{}", log.lines().find(|line| line.contains(secret)).unwrap_or_default());
    }
}
