//! Secrets are shown once, sealed where they are stored, and said nowhere.

use sandpiper_api::store::SEALED;
use sandpiper_db::reseal::reseal;
use sandpiper_db::secrets::{Vault, add_key, drop_older_keys};
use serde_json::json;

use super::{Made, Stage};
use crate::support::{request, with_header};
use crate::webhooks::receiver::Receiver;

#[tokio::test]
async fn after_a_rotation_attempts_are_signed_with_the_new_secret_alone() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::new().await;
    let old = stage.webhook(&receiver.url(), &[]).await;
    stage.volume("models").await;
    assert_eq!(stage.round(&receiver).await, 1);

    let rotated = stage.call("POST", &old.path("/secret"), None).await.expect(200);
    let new = Made { id: old.id.clone(), secret: rotated["secret"].as_str().unwrap().to_owned() };
    stage.pass(15);
    assert_eq!(stage.round(&receiver).await, 1);

    let received = receiver.received();
    assert_eq!(received[0].key(), received[1].key());
    assert!(old.has_signed(&received[0], stage.now()) && !new.has_signed(&received[0], stage.now()));
    assert!(new.has_signed(&received[1], stage.now()) && !old.has_signed(&received[1], stage.now()));
}

#[tokio::test]
async fn a_secret_is_not_in_the_response_to_a_repetition_nor_in_the_database() {
    let stage = Stage::new().await;
    let create = || {
        let body = json!({"url": "https://hooks.example.test/"});
        let request = request("POST", "/v1/webhooks", &stage.admin, Some(body));
        with_header(with_header(request, "sandpiper-team", "acme"), "idempotency-key", "once")
    };
    let first = stage.host.send(create()).await.expect(201);
    let secret = first["secret"].as_str().unwrap();

    let second = stage.host.send(create()).await.expect(201);

    assert!(second.get("secret").is_none() && second["id"] == first["id"]);
    let sealed: String =
        sqlx::query_scalar("SELECT sealed FROM team_webhooks").fetch_one(stage.host.database.read()).await.unwrap();
    assert!(!sealed.contains(secret.trim_start_matches("whsec_")));
    assert_eq!(
        stage.host.app.vault.unseal(first["id"].as_str().unwrap(), &sealed).unwrap().as_slice(),
        secret.as_bytes()
    );
}

#[tokio::test]
async fn secrets_are_sealed_anew_with_all_others() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    let file = stage.host.config.secrets_key_file();
    add_key(&file).unwrap();
    for column in &SEALED {
        reseal(&stage.host.database, &Vault::open(&file).unwrap(), column).await.unwrap();
    }
    drop_older_keys(&file).unwrap();

    let stage = Stage { host: stage.host.restart().await, admin: stage.admin };
    stage.volume("models").await;
    assert_eq!(stage.round(&receiver).await, 1);

    assert!(made.has_signed(&receiver.received()[0], stage.now()));
}

#[tokio::test]
async fn without_the_key_file_nothing_is_sent_and_nothing_is_lost() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    let file = stage.host.config.secrets_key_file();
    let kept = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let stage = Stage { host: stage.host.restart().await, admin: stage.admin };
    stage.volume("models").await;
    stage.round(&receiver).await;
    let waiting = &stage.deliveries(&made).await[0];
    assert_eq!(
        (&waiting["state"], &waiting["error"], &waiting["attempts"]),
        (&json!("pending"), &json!("no_signing_secret"), &json!(0))
    );
    assert_eq!(receiver.count(), 0);

    std::fs::write(&file, kept).unwrap();
    let stage = Stage { host: stage.host.restart().await, admin: stage.admin };
    stage.pass(61);
    stage.round(&receiver).await;

    assert!(made.has_signed(&receiver.received()[0], stage.now()));
}
