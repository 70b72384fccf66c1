//! Users: how they sign in, what their roles are good for, and how teams, members, keys and the audit come to them.

use sandpiper_accounts::Role;
use sandpiper_api::plan::Plan;
use sandpiper_api::store::members::NewInvitation;
use sandpiper_http::keys;
use serde_json::{Value, json};

use crate::support::{Answer, Host, request, with_header};

mod api_keys;
mod audit;
mod authorization;
mod events;
mod login;
mod oidc;
mod teams;

pub(crate) use authorization::operations;

/// Everybody's password.
pub(crate) const PASSWORD: &str = "correct horse battery";

/// Somebody who is signed in.
pub(crate) struct TestUser {
    pub(crate) token: String,
    pub(crate) id: String,
    /// Slug of the personal team.
    pub(crate) personal: String,
}

impl Host {
    /// Somebody new with this role in the team, which is made where missing.
    pub(crate) async fn user(&self, email: &str, team: &str, role: Role) -> TestUser {
        let token = self.invitation(team, role).await;
        let accepted = self.accept(&token, email).await.expect(200);
        let session = &accepted["session"];
        let token = session["token"].as_str().unwrap().to_owned();
        let me = self.call("GET", "/v1/me", &token, None).await.expect(200);
        TestUser {
            id: session["user"]["id"].as_str().unwrap().to_owned(),
            personal: me["team"]["slug"].as_str().unwrap().to_owned(),
            token,
        }
    }

    /// The token of an invitation by the operator.
    pub(crate) async fn invitation(&self, team: &str, role: Role) -> String {
        let now = self.app.clock.now();
        let team = self.app.store.teams.ensure(team, Plan::Pro, now).await.unwrap();
        let token = keys::generate("spi_");
        let hash = keys::hash("spi_", &token).unwrap();
        let new = NewInvitation { role, email: None, invited_by: None, hash: &hash };
        self.app.store.members.invite(&team.id, &new, now).await.unwrap();
        token.to_string()
    }

    /// Accepts an invitation as somebody new.
    async fn accept(&self, token: &str, email: &str) -> Answer {
        self.enter(
            "/v1/invitations/accept",
            json!({"token": token, "email": email, "name": "Somebody", "password": PASSWORD}),
        )
        .await
    }

    async fn log_in(&self, email: &str, password: &str) -> Answer {
        self.enter("/v1/login", json!({"email": email, "password": password})).await
    }

    /// A request without any credentials.
    pub(crate) async fn enter(&self, path: &str, body: Value) -> Answer {
        let mut request = request("POST", path, "", Some(body));
        request.headers_mut().remove("authorization");
        self.send(request).await
    }

    /// A request of somebody for a team.
    async fn for_team(&self, team: &str, method: &str, path: &str, token: &str, body: Option<Value>) -> Answer {
        self.send(with_header(request(method, path, token, body), "sandpiper-team", team)).await
    }
}
