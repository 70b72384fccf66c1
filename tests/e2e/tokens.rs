//! Who may reach a data plane.

use support::{Host, Sandbox, eventually};

tests! {
    shared: [
        missing_wrong_and_foreign_tokens_are_refused,
        an_unknown_sandbox_is_not_found_and_tells_nothing,
        the_control_plane_refuses_a_missing_and_a_wrong_key,
    ],
    alone: [
        an_expired_token_is_refused_and_a_new_session_works,
    ],
}

async fn missing_wrong_and_foreign_tokens_are_refused() {
    let host = Host::shared();
    let (sandbox, other) = tokio::join!(host.sandbox(), host.sandbox());
    let token = &sandbox.session.access_token;
    let mut forged = token.clone();
    let last = forged.pop().unwrap();
    forged.push(if last == 'A' { 'B' } else { 'A' });

    assert_eq!(status(&sandbox, None).await, 401);
    assert_eq!(status(&sandbox, Some("")).await, 401);
    assert_eq!(status(&sandbox, Some("nonsense")).await, 401);
    assert_eq!(status(&sandbox, Some(&forged[..forged.len() - 4])).await, 401);
    assert_eq!(status(&sandbox, Some(&other.session.access_token)).await, 401);
    assert_eq!(status(&sandbox, Some(token)).await, 200);
}

async fn an_expired_token_is_refused_and_a_new_session_works() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    host.set_agent("session_ttl_seconds", 2);
    host.kill_agent().await;

    let session = host.client.connect(&sandbox.id).await.unwrap();
    let url = format!("{}/files?path=/etc/hostname", session.data_plane_url);
    eventually("the token expires", || async {
        let answer = host.client.http().get(&url).header("x-access-token", &session.access_token).send().await;
        answer.is_ok_and(|answer| answer.status() == 401)
    })
    .await;

    host.set_agent("session_ttl_seconds", 3600);
    host.kill_agent().await;
    let session = host.client.connect(&sandbox.id).await.unwrap();
    assert!(host.client.data_plane(&session).read_file("/etc/hostname", None).await.is_ok());
}

async fn an_unknown_sandbox_is_not_found_and_tells_nothing() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    let (scheme, rest) = sandbox.session.data_plane_url.split_once("://").unwrap();
    let (_, parent) = rest.split_once('.').unwrap();

    let answer = host
        .client
        .http()
        .get(format!("{scheme}://00000000000000000000000000.{parent}/health"))
        .header("x-access-token", &sandbox.session.access_token)
        .send()
        .await
        .unwrap();

    assert_eq!(answer.status(), 502);
}

async fn the_control_plane_refuses_a_missing_and_a_wrong_key() {
    let host = Host::shared();
    let url = format!("{}/v1/sandboxes", host.api_url);

    let missing = host.client.http().get(&url).send().await.unwrap();
    let wrong = host.client.http().get(&url).bearer_auth(format!("spk_{}", "0".repeat(40))).send().await.unwrap();

    assert_eq!((missing.status().as_u16(), wrong.status().as_u16()), (401, 401));
}

async fn status(sandbox: &Sandbox, token: Option<&str>) -> u16 {
    let url = format!("{}/files?path=/etc/hostname", sandbox.session.data_plane_url);
    let mut request = Host::shared().client.http().get(url);
    if let Some(token) = token {
        request = request.header("x-access-token", token);
    }
    request.send().await.expect("an answer").status().as_u16()
}
