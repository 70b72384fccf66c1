//! The paths of the E2B SDKs: bodies as those send them, and what they read of the answers.

mod authorization;
mod lifecycle;
mod list;
mod network;
mod snapshots;
mod templates;
mod volumes;

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;

use crate::support::{Answer, Host};

/// As the SDKs send it: the key in their own header, and in their own spelling.
fn sdk_request(method: &str, path: &str, key: &str, body: Option<Value>) -> Request<Body> {
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let key = key.replace("spk_", "e2b_");
    Request::builder().method(method).uri(path).header("x-api-key", key).body(body).unwrap()
}

impl Host {
    /// A request with team `acme`'s key that may write.
    pub(crate) async fn sdk(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.send(sdk_request(method, path, &self.write, body)).await
    }

    /// The answer to a create request, which must be granted.
    async fn sdk_create(&self, body: Value) -> Value {
        self.sdk("POST", "/v2/sandboxes", Some(body)).await.expect(201)
    }

    /// The id of a new sandbox.
    async fn sdk_sandbox(&self) -> String {
        id(&self.sdk_create(serde_json::json!({"templateID": "base", "timeout": 300})).await)
    }
}

impl Answer {
    /// Asserts an error of the form that the SDKs read; its message is returned.
    #[track_caller]
    fn fails(self, status: u16) -> String {
        let body = self.expect(status);
        assert_eq!(body["code"], status, "{body}");
        body["message"].as_str().filter(|message| !message.is_empty()).expect("a message").to_owned()
    }
}

fn id(sandbox: &Value) -> String {
    sandbox["sandboxID"].as_str().unwrap().to_owned()
}
