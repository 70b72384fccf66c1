//! Merchants' keys: made once, rotated at once, never shown again.

use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::webhook_endpoints::EndpointKey;
use sandpiper_webhook::{DEFAULT_WINDOW, SigningKey, sign, verify};
use serde_json::{Value, json};

use crate::support::Host;
use crate::support::shop::Shop;

const CATALOG: &str = "/merchant/api/v1/catalog";

/// The key that signs webhooks of this realm now.
async fn signing_key(host: &Host, shop: &Shop, realm: Realm) -> Option<SigningKey> {
    let endpoint = EndpointKey { merchant_id: shop.merchant.clone(), realm };
    let mut keys = host.payments.store.merchant_keys.signing_keys(&host.payments.vault, [&endpoint]).await.unwrap();
    keys.remove(&endpoint).transpose().unwrap()
}

/// Whether webhooks of this realm are signed with the key in this secret now.
async fn signs_with(host: &Host, shop: &Shop, realm: Realm, secret: &str) -> bool {
    let key = signing_key(host, shop, realm).await;
    let header = sign(&key.expect("a signing key"), 1_700_000_000, b"{}");
    let expected = SigningKey::from_api_key(secret).unwrap();
    verify(&expected, [header], b"{}", 1_700_000_000, DEFAULT_WINDOW).is_ok()
}

async fn rotate(host: &Host, shop: &Shop, key_id: &str) -> Value {
    let path = format!("/operator/v1/merchants/{}/keys/{key_id}/rotate", shop.merchant);
    host.call("POST", &path, &shop.operator, None).await.expect(201)
}

#[tokio::test]
async fn keys_have_the_prefixes_of_their_realm_and_kind() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for (keys, public, secret) in [(&shop.live, "pk_prod_", "sk_prod_"), (&shop.sandbox, "pk_test_", "sk_test_")] {
        assert!(keys.public.starts_with(public) && keys.secret.starts_with(secret));
    }
}

#[tokio::test]
async fn a_realm_has_one_active_secret_key_and_any_number_of_public_ones() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let path = format!("/operator/v1/merchants/{}/keys", shop.merchant);
    let post =
        async |kind: &str| host.call("POST", &path, &shop.operator, Some(json!({"realm": "live", "kind": kind}))).await;
    post("secret").await.denied(409, "ALREADY_EXISTS", "ALREADY_EXISTS");
    let second = post("public").await.expect(201);
    for key in [second["key"].as_str().unwrap(), &shop.live.public, &shop.live.secret] {
        host.call("GET", CATALOG, key, None).await.expect(200);
    }
    let absent = "/operator/v1/merchants/mer0/keys";
    let body = json!({"realm": "live", "kind": "public"});
    host.call("POST", absent, &shop.operator, Some(body)).await.denied(404, "NOT_FOUND", "NOT_FOUND");
    host.call("GET", absent, &shop.operator, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");
}

#[tokio::test]
async fn keys_are_shown_once_and_not_found_in_the_list_or_the_database() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let path = format!("/operator/v1/merchants/{}/keys", shop.merchant);
    let list = host.call("GET", &path, &shop.operator, None).await.expect(200);
    let kinds: Vec<_> = list["keys"].as_array().unwrap().iter().map(|key| (&key["realm"], &key["kind"])).collect();
    assert_eq!(kinds.len(), 4);
    let text = list.to_string();
    assert!(!text.contains("pk_prod_") && !text.contains("sk_prod_") && !text.contains("sealed"), "{text}");
    let fields: Vec<_> = list["keys"][0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["createdAt", "id", "kind", "realm"]);

    for secret in [&shop.live.secret, &shop.live.secret["sk_prod_".len()..], &shop.live.public, &shop.operator] {
        assert!(!host.stores(secret).await);
    }
}

#[tokio::test]
async fn rotation_is_in_force_at_once_and_leaves_the_other_realm_alone() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    assert!(signs_with(&host, &shop, Realm::Live, &shop.live.secret).await);
    assert!(signs_with(&host, &shop, Realm::Sandbox, &shop.sandbox.secret).await);

    let new = rotate(&host, &shop, &shop.live.secret_id).await;

    let secret = new["key"].as_str().unwrap();
    assert_eq!((&new["realm"], &new["kind"]), (&json!("live"), &json!("secret")));
    assert!(signs_with(&host, &shop, Realm::Live, secret).await);
    assert!(!signs_with(&host, &shop, Realm::Live, &shop.live.secret).await);
    assert!(signs_with(&host, &shop, Realm::Sandbox, &shop.sandbox.secret).await);
    let answer = host.call("GET", CATALOG, &shop.live.secret, None).await;
    answer.denied(401, "UNAUTHENTICATED", "INVALID_KEY");
    host.call("GET", CATALOG, secret, None).await.expect(200);
    host.call("GET", CATALOG, &shop.sandbox.secret, None).await.expect(200);

    // The old key is over, and cannot be rotated again.
    let path = format!("/operator/v1/merchants/{}/keys/{}/rotate", shop.merchant, shop.live.secret_id);
    host.call("POST", &path, &shop.operator, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");
}

#[tokio::test]
async fn of_rotations_at_once_one_wins() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let path = format!("/operator/v1/merchants/{}/keys/{}/rotate", shop.merchant, shop.live.secret_id);
    let rotations = (0..8).map(|_| host.call("POST", &path, &shop.operator, None));
    let answers = futures_util::future::join_all(rotations).await;
    let mut made: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    made.sort_unstable();
    assert_eq!(made, [201, 404, 404, 404, 404, 404, 404, 404]);
    let winner = answers.iter().find(|answer| answer.status == 201).unwrap().json();
    assert!(signs_with(&host, &shop, Realm::Live, winner["key"].as_str().unwrap()).await);
}

#[tokio::test]
async fn a_public_key_is_rotated_too() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let path = format!("/operator/v1/merchants/{}/keys", shop.merchant);
    let list = host.call("GET", &path, &shop.operator, None).await.expect(200);
    let id = list["keys"][0]["id"].as_str().unwrap();
    let new = rotate(&host, &shop, id).await;
    host.call("GET", CATALOG, new["key"].as_str().unwrap(), None).await.expect(200);
    host.call("GET", CATALOG, &shop.live.public, None).await.denied(401, "UNAUTHENTICATED", "INVALID_KEY");
}

#[tokio::test]
async fn a_realm_whose_secret_key_was_ended_has_no_signing_key_until_it_gets_another() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let path = format!("/operator/v1/merchants/{}/keys/{}", shop.merchant, shop.live.secret_id);
    host.call("DELETE", &path, &shop.operator, None).await.expect(204);
    host.call("DELETE", &path, &shop.operator, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");

    assert!(signing_key(&host, &shop, Realm::Live).await.is_none());
    let keys = format!("/operator/v1/merchants/{}/keys", shop.merchant);
    let body = json!({"realm": "live", "kind": "secret"});
    let new = host.call("POST", &keys, &shop.operator, Some(body)).await.expect(201);
    assert!(signs_with(&host, &shop, Realm::Live, new["key"].as_str().unwrap()).await);

    let list = host.call("GET", &keys, &shop.operator, None).await.expect(200);
    let ended = list["keys"].as_array().unwrap().iter().find(|key| key["id"] == shop.live.secret_id.as_str()).unwrap();
    assert!(ended["revokedAt"].is_string());
}

#[tokio::test]
async fn keys_of_another_merchant_cannot_be_touched_under_this_ones_name() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let rival = host.merchant(&shop.operator, "rival", json!({})).await;
    let path = format!("/operator/v1/merchants/{rival}/keys/{}", shop.live.secret_id);
    host.call("DELETE", &path, &shop.operator, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");
    host.call("POST", &format!("{path}/rotate"), &shop.operator, None).await.denied(404, "NOT_FOUND", "NOT_FOUND");
    host.call("GET", CATALOG, &shop.live.secret, None).await.expect(200);
}
