//! `PUT /sandboxes/{id}/network`, and what of it a create request may say.

use serde_json::json;

use crate::support::Host;

#[tokio::test]
async fn a_new_policy_replaces_the_whole_of_the_old_one() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let path = format!("/sandboxes/{sandbox}/network");
    let policy = || host.agent.network(&sandbox).policy;

    let body = json!({"allowOut": ["api.example.com", "192.0.2.0/24"], "denyOut": ["0.0.0.0/0"]});
    host.sdk("PUT", &path, Some(body)).await.expect(204);
    assert_eq!(policy().allow_out, ["api.example.com", "192.0.2.0/24"]);
    assert!(!policy().allow_internet_access, "what is denied is denied over IPv6, too");

    host.sdk("PUT", &path, Some(json!({"denyOut": ["198.51.100.7"]}))).await.expect(204);
    assert!(policy().allow_internet_access && policy().allow_out.is_empty());
    assert_eq!(policy().deny_out, ["198.51.100.7"]);
    host.sdk("PUT", &path, Some(json!({"allow_internet_access": false}))).await.expect(204);
    assert!(!policy().allow_internet_access && policy().deny_out.is_empty());
}

#[tokio::test]
async fn a_policy_that_would_not_do_what_it_says_is_refused() {
    let host = Host::new().await;
    let path = format!("/sandboxes/{}/network", host.sdk_sandbox().await);
    for (body, named) in [
        (json!({"allowOut": ["api.example.com"]}), "allowOut"),
        (json!({"denyOut": ["api.example.com"]}), "denyOut"),
        (json!({"denyOut": ["192.0.2.1/24"]}), "deny_out"),
        (json!({"dnsServers": ["192.0.2.1"]}), "dnsServers"),
        (json!({"rules": {"x.example": []}}), "rules"),
        (json!({"egressProxy": {"address": "p.example:1"}}), "egressProxy"),
        (json!({"deny_out": []}), "deny_out"),
    ] {
        let message = host.sdk("PUT", &path, Some(body)).await.fails(400);
        assert!(message.contains(named), "{named}: {message}");
    }
    let named = json!({"allowOut": ["api.example.com"], "allow_internet_access": false});
    host.sdk("PUT", &path, Some(named)).await.expect(204);
}
