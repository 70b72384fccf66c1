//! Events, for people who are signed in.

use sandpiper_accounts::Role;
use serde_json::json;

use crate::events::Events;
use crate::support::Host;

#[tokio::test]
async fn whoever_leaves_a_team_sees_no_more_of_what_happens_there() {
    let host = Host::new().await;
    let admin = host.user("ada@example.com", "acme", Role::Admin).await;
    let viewer = host.user("eve@example.com", "acme", Role::Viewer).await;
    let mut events = Events::follow(host.router(), &viewer.token, "?team=acme&after=0", None).await;
    host.sandbox().await;
    assert_eq!(events.numbers(2).await, [1, 2]);
    // The personal team has its own.
    let personal = host.call("GET", "/v1/events", &viewer.token, None).await.expect(200);
    assert_eq!(personal["events"], json!([]));

    let member = format!("/v1/teams/acme/members/{}", viewer.id);
    host.for_team("acme", "DELETE", &member, &admin.token, None).await.expect(204);

    assert_eq!(events.next().await, None);
    // With the membership the session is over.
    host.call("GET", "/v1/events?team=acme", &viewer.token, None).await.refused(401, "unauthorized");
}
