//! Preview ports.

use serde_json::json;

use crate::support::Host;

#[tokio::test]
async fn a_port_is_exposed_shown_and_ended() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let sandbox = format!("/v1/sandboxes/{id}");
    let path = format!("{sandbox}/ports/8000");
    host.get(&path).await.refused(404, "not_found");

    let exposed = host.call("PUT", &path, &host.write, Some(json!({"public": true}))).await.expect(200);

    assert_eq!(exposed["url"], format!("http://p8000-{id}.sandbox.localhost:8080"));
    assert_eq!(exposed["host"], format!("p8000-{id}.sandbox.localhost"));
    assert_eq!((&exposed["protocol"], &exposed["public"]), (&json!("http"), &json!(true)));
    assert_eq!(exposed["status"], "closed");
    assert_eq!(host.get(&path).await.expect(200), exposed);
    let listed = host.get("/v1/sandboxes").await.expect(200)["sandboxes"][0]["exposed_ports"].clone();
    assert_eq!(listed, json!([{"port": 8000, "protocol": "http", "public": true}]));

    let private = host.call("PUT", &path, &host.write, None).await.expect(200);
    assert_eq!(private["public"], false);
    host.call("DELETE", &path, &host.write, None).await.expect(204);
    host.get(&path).await.refused(404, "not_found");
    host.call("DELETE", &path, &host.write, None).await.refused(404, "not_found");
    assert_eq!(host.get(&sandbox).await.expect(200)["exposed_ports"], json!([]));
}

#[tokio::test]
async fn only_numbers_from_1_to_65535_are_ports() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    for port in ["0", "65536", "http", "-1", "080", "+80"] {
        host.get(&format!("/v1/sandboxes/{id}/ports/{port}")).await.blames("port");
    }
    let path = format!("/v1/sandboxes/{id}/ports/80");
    host.call("PUT", &path, &host.write, Some(json!({"protocol": "tcp"}))).await.blames("protocol");
    host.call("PUT", &path, &host.write, Some(json!({"port": 80}))).await.refused(400, "invalid_request");
}
