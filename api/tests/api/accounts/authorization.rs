//! Every operation of the document as every kind of caller.

use sandpiper_accounts::Role;
use serde_json::{Value, json};

use super::PASSWORD;
use crate::authorization::{Ids, OPERATIONS};
use crate::support::{Answer, Host};

/// Who may do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nobody in particular.
    Nothing,
    /// A key, or a member.
    Key,
    /// A user.
    User,
    /// An admin of the team.
    Admin,
}

struct Operation {
    needs: Needs,
    method: &'static str,
    path: &'static str,
    body: Option<fn() -> Value>,
}

const fn operation(needs: Needs, method: &'static str, path: &'static str) -> Operation {
    Operation { needs, method, path, body: None }
}

/// What is about accounts. A new operation has to be added here, or
/// `every_operation_is_listed` fails. Those that take something away come last.
const PEOPLE: [Operation; 34] = [
    Operation {
        body: Some(|| json!({"email": "eve@example.com", "password": "guessed"})),
        ..operation(Needs::Nothing, "POST", "/v1/login")
    },
    Operation {
        body: Some(|| json!({"token": format!("spi_{}", "0".repeat(40))})),
        ..operation(Needs::Nothing, "POST", "/v1/invitations/accept")
    },
    operation(Needs::Nothing, "GET", "/v1/login/oidc"),
    Operation { body: Some(|| json!({})), ..operation(Needs::Nothing, "POST", "/v1/login/oidc/begin") },
    Operation {
        body: Some(|| json!({"transaction": "v1:", "state": "guessed"})),
        ..operation(Needs::Nothing, "POST", "/v1/login/oidc")
    },
    operation(Needs::Key, "GET", "/v1/me"),
    operation(Needs::Key, "GET", "/v1/teams"),
    operation(Needs::Key, "GET", "/v1/teams/{team}"),
    operation(Needs::Key, "GET", "/v1/teams/{team}/members"),
    Operation { body: Some(|| json!({"name": "Ada"})), ..operation(Needs::User, "PATCH", "/v1/me") },
    operation(Needs::User, "GET", "/v1/me/sessions"),
    Operation { body: Some(|| json!({"slug": "-"})), ..operation(Needs::User, "POST", "/v1/teams") },
    operation(Needs::Admin, "GET", "/v1/teams/{team}/invitations"),
    Operation {
        body: Some(|| json!({"role": "viewer"})),
        ..operation(Needs::Admin, "POST", "/v1/teams/{team}/invitations")
    },
    operation(Needs::Admin, "GET", "/v1/api_keys"),
    Operation { body: Some(|| json!({"capability": "read"})), ..operation(Needs::Admin, "POST", "/v1/api_keys") },
    operation(Needs::Admin, "GET", "/v1/audit"),
    operation(Needs::Key, "GET", "/v1/webhooks"),
    Operation {
        body: Some(|| json!({"url": "https://hooks.example.test/"})),
        ..operation(Needs::Admin, "POST", "/v1/webhooks")
    },
    operation(Needs::Key, "GET", "/v1/webhooks/{id}"),
    Operation { body: Some(|| json!({"enabled": false})), ..operation(Needs::Admin, "PATCH", "/v1/webhooks/{id}") },
    operation(Needs::Admin, "POST", "/v1/webhooks/{id}/secret"),
    operation(Needs::Admin, "POST", "/v1/webhooks/{id}/test"),
    operation(Needs::Key, "GET", "/v1/webhooks/{id}/deliveries"),
    operation(Needs::Key, "GET", "/v1/webhooks/{id}/deliveries/{delivery}"),
    operation(Needs::Admin, "POST", "/v1/webhooks/{id}/deliveries/{delivery}/redeliver"),
    operation(Needs::Admin, "DELETE", "/v1/webhooks/{id}"),
    Operation {
        body: Some(|| json!({"role": "viewer"})),
        ..operation(Needs::Admin, "PATCH", "/v1/teams/{team}/members/{user}")
    },
    operation(Needs::Admin, "DELETE", "/v1/teams/{team}/members/{user}"),
    operation(Needs::Admin, "DELETE", "/v1/teams/{team}/invitations/{id}"),
    operation(Needs::Admin, "DELETE", "/v1/api_keys/{id}"),
    operation(Needs::User, "DELETE", "/v1/me/sessions/{id}"),
    operation(Needs::User, "DELETE", "/v1/me/identities/{id}"),
    // Nothing is left to ask for after this.
    operation(Needs::User, "POST", "/v1/logout"),
];

/// Method and path of all of them.
pub(crate) fn operations() -> impl Iterator<Item = (&'static str, &'static str)> {
    PEOPLE.iter().map(|operation| (operation.method, operation.path))
}

impl Operation {
    async fn send(&self, host: &Host, team: &str, token: &str) -> Answer {
        // Of nobody: who may ask is told that there is none.
        let path = self.path.replace("{team}", team).replace("{user}", "usr0000000000000000000000");
        let path = path.replace("{id}", "key0000000000000000000000").replace("{delivery}", "dlv_0");
        host.for_team(team, self.method, &path, token, self.body.map(|body| body())).await
    }
}

#[tokio::test]
async fn what_is_for_users_is_for_those_whose_role_is_enough() {
    let host = Host::new().await;
    for role in Role::ALL {
        let user = host.user(&format!("{role}@example.com"), "acme", role).await;
        let rest = PEOPLE.iter().filter(|operation| operation.needs != Needs::Nothing);
        for operation in rest.take_while(|operation| operation.path != "/v1/logout") {
            let what = format!("{role}: {} {}", operation.method, operation.path);
            let is_enough = operation.needs != Needs::Admin || role >= Role::Admin;

            let answer = operation.send(&host, "acme", &user.token).await;

            match answer.status.as_u16() {
                403 => assert!(!is_enough, "{what}: {}", answer.text),
                // Of what is not there, or of a slug that is none.
                200..300 | 400 | 404 => assert!(is_enough, "{what}: {}", answer.text),
                status => panic!("{what}: {status} {}", answer.text),
            }
        }
    }
}

#[tokio::test]
async fn of_a_disabled_team_users_have_what_is_their_own_and_nothing_else() {
    let host = Host::new().await;
    let owner = host.user("ada@example.com", "acme", Role::Owner).await;
    host.disable("acme").await;
    for operation in PEOPLE.iter().filter(|operation| operation.needs != Needs::Nothing) {
        let is_own = operation.needs == Needs::User || ["/v1/me", "/v1/teams"].contains(&operation.path);

        let answer = operation.send(&host, "acme", &owner.token).await;

        match is_own {
            true => assert_ne!(answer.status.as_u16(), 403, "{} {}", operation.method, operation.path),
            false => answer.refused_as_disabled(),
        }
        if operation.needs == Needs::Key {
            operation.send(&host, "acme", &host.write).await.refused_as_disabled();
        }
    }
}

#[tokio::test]
async fn what_is_for_users_is_not_for_keys_strangers_or_nobody() {
    let host = Host::new().await;
    let stranger = host.user("stranger@example.com", "elsewhere", Role::Owner).await;
    for operation in PEOPLE.iter().filter(|operation| operation.needs != Needs::Nothing) {
        let what = format!("{} {}", operation.method, operation.path);
        let is_for_keys = operation.needs == Needs::Key;
        for key in [&host.read, &host.write] {
            let answer = operation.send(&host, "acme", key).await;
            // Of what is not there.
            let read = if operation.path.contains("{id}") { 404 } else { 200 };
            assert_eq!(answer.status.as_u16(), if is_for_keys { read } else { 403 }, "{what}: {}", answer.text);
        }
        for token in ["", "nonsense", &format!("sps_{}", "0".repeat(40))] {
            operation.send(&host, "acme", token).await.refused(401, "unauthorized");
        }
        operation.send(&host, "acme", &stranger.token).await.refused(404, "not_found");
        operation.send(&host, "nobodys", &stranger.token).await.refused(404, "not_found");
        if is_for_keys && operation.path.contains("{team}") {
            operation.send(&host, "acme", &host.foreign).await.refused(404, "not_found");
        }
    }
}

#[tokio::test]
async fn what_is_for_keys_is_for_members_too_and_viewers_only_read() {
    for operation in &OPERATIONS {
        // Each makes all that is needed to try it, of which a team may not have much.
        let host = Host::new().await;
        let ids = Ids::new(&host).await;
        let path = operation.path(&ids);
        let mut answers = Vec::new();
        for (role, team) in [(Role::Owner, "elsewhere"), (Role::Viewer, "acme"), (Role::Member, "acme")] {
            let user = host.user(&format!("{role}@example.com"), team, role).await;
            answers.push(host.for_team("acme", operation.method, &path, &user.token, operation.body()).await);
        }
        let [stranger, viewer, member] = answers.try_into().unwrap();

        stranger.refused(404, "not_found");
        assert_eq!(viewer.status == 403, operation.mutates(), "{} {path}: {}", operation.method, viewer.text);
        let status = member.status.as_u16();
        assert!(matches!(status, 200..300 | 404 | 409), "{} {path}: {}", operation.method, member.text);
    }
}

#[tokio::test]
async fn the_examples_are_accepted() {
    let host = Host::new().await;
    let document: Value = serde_json::from_str(&sandpiper_api::document::text().unwrap()).unwrap();
    let ada = host.user("grace@example.com", "acme", Role::Owner).await;
    for (method, path) in operations().filter(|(method, _)| ["POST", "PATCH"].contains(method)) {
        let operation = &document["paths"][path][method.to_lowercase()];
        let example = operation["requestBody"]["content"]["application/json"]["example"].clone();
        let path = path.replace("{team}", "acme").replace("{user}", &ada.id);
        let answer = match path.as_str() {
            "/v1/logout" => continue,
            "/v1/login" => host.enter(&path, json!({"email": "grace@example.com", "password": PASSWORD})).await,
            _ => host.call(method, &path, &ada.token, Some(example)).await,
        };
        // Only what is there or is not stands in the way.
        assert!(matches!(answer.status.as_u16(), 200..300 | 404 | 409), "{method} {path}: {}", answer.text);
    }
}
