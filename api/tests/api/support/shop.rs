//! A merchant with keys in both realms, and what it may discover, all through the operator's API.

use axum::body::Body;
use axum::http::Request;
use sandpiper_accounts::operators::keys;
use serde_json::{Value, json};

use super::{Answer, Host, request};

/// Markets, banks and operators, as the documentation gives them.
pub(crate) const MARKETS: &str = include_str!("../../../../docs/examples/markets.json");

/// Who operates, and one merchant.
pub(crate) struct Shop {
    pub(crate) operator: String,
    /// Its id.
    pub(crate) merchant: String,
    /// Kenya, Nigeria and Tanzania.
    pub(crate) live: Keys,
    /// Kenya alone.
    pub(crate) sandbox: Keys,
}

/// A realm's keys.
pub(crate) struct Keys {
    pub(crate) public: String,
    pub(crate) secret: String,
    pub(crate) secret_id: String,
}

impl Shop {
    /// On a host that has none yet.
    pub(crate) async fn open(host: &Host) -> Self {
        let operator = operator_key(host).await;
        host.import(&operator, "application/json", "", MARKETS).await.expect(200);
        let markets = json!({
            "live": [market("KE", "KES"), market("NG", "NGN"), market("TZ", "TZS")],
            "sandbox": [market("KE", "KES")],
        });
        let merchant = host.merchant(&operator, "acme", markets).await;
        let live = Keys::make(host, &operator, &merchant, "live").await;
        let sandbox = Keys::make(host, &operator, &merchant, "sandbox").await;
        Self { operator, merchant, live, sandbox }
    }

    /// The report of a payment of this merchant in the live realm.
    pub(crate) fn report(&self, status: &str, updated_at: &str) -> Value {
        let mut report = json!({
            "merchantId": self.merchant,
            "realm": "live",
            "status": status,
            "amount": "1500.00",
            "currencyCode": "KES",
            "countryCode": "KE",
            "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY",
            "operator": "example-wallet-ke",
            "createdAt": "2026-01-02T03:04:05Z",
            "updatedAt": updated_at,
            "metadata": {"order": "42"},
        });
        if status == "COMPLETED" {
            report["actualAmount"] = json!("1500.00");
        }
        report
    }
}

impl Keys {
    pub(crate) async fn make(host: &Host, operator: &str, merchant: &str, realm: &str) -> Self {
        let path = format!("/operator/v1/merchants/{merchant}/keys");
        let public =
            host.call("POST", &path, operator, Some(json!({"realm": realm, "kind": "public"}))).await.expect(201);
        let secret =
            host.call("POST", &path, operator, Some(json!({"realm": realm, "kind": "secret"}))).await.expect(201);
        let text = |key: &Value, field: &str| key[field].as_str().unwrap().to_owned();
        Self { public: text(&public, "key"), secret: text(&secret, "key"), secret_id: text(&secret, "id") }
    }
}

/// Names a market.
pub(crate) fn market(country: &str, currency: &str) -> Value {
    json!({"countryCode": country, "currencyCode": currency})
}

/// A new operator key.
pub(crate) async fn operator_key(host: &Host) -> String {
    let key = keys::generate();
    let hash = keys::hash(&key).unwrap();
    host.payments.store.operator_keys.add("test", &hash, jiff::Timestamp::now()).await.unwrap();
    key.to_string()
}

impl Host {
    /// The id of a new merchant.
    pub(crate) async fn merchant(&self, operator: &str, name: &str, markets: Value) -> String {
        let body = json!({"name": name, "markets": markets});
        let made = self.call("POST", "/operator/v1/merchants", operator, Some(body)).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    /// Imports a file; `query` begins with `?`, if there is one.
    pub(crate) async fn import(&self, operator: &str, content_type: &str, query: &str, file: &str) -> Answer {
        let mut order: Request<Body> = request("POST", &format!("/operator/v1/import{query}"), operator, None);
        order.headers_mut().insert("content-type", content_type.parse().unwrap());
        *order.body_mut() = Body::from(file.to_owned());
        self.send(order).await
    }

    /// Reports a payment.
    pub(crate) async fn report(&self, shop: &Shop, id: &str, report: Value) -> Answer {
        self.call("PUT", &format!("/operator/v1/payments/{id}"), &shop.operator, Some(report)).await
    }
}

impl Answer {
    /// Asserts an error in the envelope of `/merchant` and `/operator`; it is returned.
    #[track_caller]
    pub(crate) fn denied(self, code: u16, status: &str, reason: &str) -> Value {
        let request_id = self.header("x-request-id").expect("a request id").to_owned();
        let mut body = self.expect(code);
        let error = body["error"].take();
        assert_eq!(body.as_object().unwrap().len(), 1);
        assert_eq!((&error["code"], &error["status"]), (&json!(code), &json!(status)), "{error}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        let info = detail(&error, "ErrorInfo");
        assert_eq!((&info["reason"], &info["domain"]), (&json!(reason), &json!("sandpiper")), "{error}");
        assert_eq!(detail(&error, "RequestInfo")["requestId"], request_id.as_str());
        error
    }

    /// Asserts a 400 on these fields of the body, in their order.
    #[track_caller]
    pub(crate) fn violates(self, fields: &[&str]) -> Value {
        let error = self.denied(400, "INVALID_ARGUMENT", "INVALID_FIELD");
        let violations = detail(&error, "BadRequest")["fieldViolations"].as_array().unwrap();
        let found: Vec<_> = violations.iter().map(|violation| violation["field"].as_str().unwrap()).collect();
        assert_eq!(found, fields, "{error}");
        error
    }
}

/// The detail of this type.
#[track_caller]
pub(crate) fn detail<'a>(error: &'a Value, name: &str) -> &'a Value {
    let wanted = format!("type.googleapis.com/google.rpc.{name}");
    let details = error["details"].as_array().expect("details");
    details.iter().find(|detail| detail["@type"] == wanted.as_str()).unwrap_or_else(|| panic!("no {name}: {error}"))
}
