//! Whose sessions are, and that they end with the API key that they were made with.

use sandpiper_api::orchestration::sync::Synchronizer;
use serde_json::json;

use crate::support::{Host, request, with_header};

/// The id of team `acme`'s key that may write.
async fn write_key(host: &Host) -> String {
    let keys = host.app.store.keys.all().await.unwrap();
    let is_it = |team: &str, capability: &str| team == "acme" && capability == "write";
    keys.into_iter().find(|key| is_it(&key.team, key.capability.as_str())).unwrap().id
}

#[tokio::test]
async fn every_session_is_for_the_key_that_asked_for_it() {
    let host = Host::new().await;
    let key = write_key(&host).await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (operation, status) in [("fork", 201), ("connect", 200), ("resume", 200), ("session", 200)] {
        let order = || request("POST", &format!("{path}/{operation}"), &host.write, Some(json!({})));
        for _ in 0..2 {
            host.send(with_header(order(), "idempotency-key", operation)).await.expect(status);
        }
    }

    let of = host.agent.records().session_keys.clone();

    assert_eq!(of, vec![key; 9], "one of the create, and of each other request and its repetition");
}

#[tokio::test]
async fn the_agent_is_told_of_revoked_keys_until_it_knows() {
    let mut host = Host::new().await;
    let key = write_key(&host).await;
    let mut synchronizer = Synchronizer::new(host.app.clone());
    synchronizer.round().await.unwrap();
    assert!(host.agent.records().revocations.is_empty());
    host.app.store.keys.revoke(&key, None, jiff::Timestamp::now()).await.unwrap();

    host.agent.stop();
    synchronizer.round().await.unwrap_err();
    host.agent.resume();
    synchronizer.round().await.unwrap();
    synchronizer.round().await.unwrap();

    assert_eq!(host.agent.records().revocations, [[key.clone()]]);
    // The next process does not know what this one has told.
    host.sync().await;
    assert_eq!(host.agent.records().revocations, [[key.clone()], [key]]);
}
