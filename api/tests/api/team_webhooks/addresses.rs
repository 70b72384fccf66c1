//! Where teams' webhooks may not go: what a name resolves to is looked at before each connection.

use sandpiper_api::webhooks::enqueuer;
use sandpiper_delivery::addresses::AddressRule;
use sandpiper_delivery::worker::Worker;
use serde_json::json;

use super::Stage;
use crate::webhooks::receiver::Receiver;
use crate::webhooks::stage::{Names, dependencies_with};

#[tokio::test]
async fn a_name_that_leads_inside_is_not_connected_to() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let url = format!("https://merchant.example.test:{}/", receiver.address.port());
    let made = stage.webhook(&url, &[]).await;
    let names = Names::default();
    let worker = Worker::new(
        stage.host.app.webhooks.clone(),
        dependencies_with(&[&receiver], names.clone(), AddressRule::default()),
    );
    for addresses in [&["127.0.0.1"][..], &["10.1.2.3"], &["169.254.169.254"], &["8.8.8.8", "127.0.0.1"], &["::1"]] {
        names.say(addresses);
        let delivery = stage.call("POST", &made.path("/test"), None).await.expect(202);
        enqueuer::round(&stage.host.app).await.unwrap();
        assert_eq!(worker.round().await.unwrap(), 1);
        let path = made.path(&format!("/deliveries/{}", delivery["id"].as_str().unwrap()));
        let shown = stage.get(&path).await;
        assert_eq!((&shown["state"], &shown["error"]), (&json!("pending"), &json!("blocked_address")), "{addresses:?}");
        assert!(shown["log"][0]["detail"].as_str().unwrap().contains("is not a public address"), "{shown}");
    }
    assert_eq!(receiver.connections(), 0);
}
