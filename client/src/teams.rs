//! Users, their teams, and the keys and the audit of those. Responses are as the API gives them: most are for people to look at.

use reqwest::{Method, Url};
use serde_json::{Value, json};

use super::{Client, ClientError};

impl Client {
    /// Signs in; the response has `token` and `user`.
    pub async fn log_in(&self, email: &str, password: &str) -> Result<Value, ClientError> {
        self.call(Method::POST, "/login", Some(json!({"email": email, "password": password}))).await
    }

    /// Ends the login session that this client has.
    pub async fn log_out(&self) -> Result<(), ClientError> {
        self.call(Method::POST, "/logout", None).await.map(drop)
    }

    /// Accepts an invitation: as somebody new with `email`, `name` and `password` in `who`, or signed in with none of these. The
    /// response has `team`, and for somebody new `session`.
    pub async fn accept_invitation(&self, token: &str, mut who: Value) -> Result<Value, ClientError> {
        who["token"] = token.into();
        self.call(Method::POST, "/invitations/accept", Some(who)).await
    }

    /// Who this client is.
    pub async fn me(&self) -> Result<Value, ClientError> {
        self.call(Method::GET, "/me", None).await
    }

    /// The teams of the user, by slug.
    pub async fn teams(&self) -> Result<Vec<Value>, ClientError> {
        self.pages("/teams", "limit=100", "teams").await
    }

    /// Founds a team.
    pub async fn create_team(&self, slug: &str) -> Result<Value, ClientError> {
        self.call(Method::POST, "/teams", Some(json!({"slug": slug}))).await
    }

    /// Who is in a team.
    pub async fn members(&self, team: &str) -> Result<Vec<Value>, ClientError> {
        self.pages(&format!("/teams/{team}/members"), "limit=100", "members").await
    }

    /// Gives a member, by the user's id, another role.
    pub async fn set_role(&self, team: &str, user: &str, role: &str) -> Result<Value, ClientError> {
        self.call(Method::PATCH, &format!("/teams/{team}/members/{user}"), Some(json!({"role": role}))).await
    }

    /// Removes a member, by the user's id.
    pub async fn remove_member(&self, team: &str, user: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/teams/{team}/members/{user}"), None).await.map(drop)
    }

    /// Makes an invitation; the response has its `token`.
    pub async fn invite(&self, team: &str, role: &str, email: Option<&str>) -> Result<Value, ClientError> {
        let body = json!({"role": role, "email": email});
        self.call(Method::POST, &format!("/teams/{team}/invitations"), Some(body)).await
    }

    /// Makes an API key of this client's team; the response has the `key`.
    pub async fn create_api_key(
        &self,
        name: &str,
        capability: &str,
        expires_at: Option<&str>,
    ) -> Result<Value, ClientError> {
        let body = json!({"name": name, "capability": capability, "expires_at": expires_at});
        self.call(Method::POST, "/api_keys", Some(body)).await
    }

    /// The API keys of this client's team, newest first.
    pub async fn api_keys(&self) -> Result<Vec<Value>, ClientError> {
        self.pages("/api_keys", "limit=100", "api_keys").await
    }

    /// Ends an API key, by its id.
    pub async fn revoke_api_key(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/api_keys/{id}"), None).await.map(drop)
    }

    /// The newest entries of the audit of this client's team, at most `limit` (100 at most). `filters`: `actor`, `action`,
    /// `resource`, `from`, `to`.
    pub async fn audit(&self, filters: &[(&str, &str)], limit: u32) -> Result<Vec<Value>, ClientError> {
        let limit = limit.to_string();
        let pairs = filters.iter().copied().chain([("limit", limit.as_str())]);
        let url = Url::parse_with_params("http://localhost/", pairs);
        let query = url.ok().and_then(|url| url.query().map(str::to_owned)).unwrap_or_default();
        let path = format!("/audit?{query}");
        let mut page = self.call(Method::GET, &path, None).await?;
        self.parse("/audit", page.get_mut("entries").map(Value::take).unwrap_or_default())
    }
}
