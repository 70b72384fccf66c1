//! A provider that says what no provider may say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey};
use sandpiper_accounts::Role;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::{Browser, configure, refused, session};
use crate::support::Host;
use crate::support::provider::SECRET;

/// The access token that comes with every ID token.
const ACCESS_TOKEN: &str = "an access token, which nobody logs";
const KEY_ID: &str = "the one";

/// A provider, written by hand, that says what it is told to say.
#[derive(Clone)]
struct Hostile(Arc<Parts>);

struct Parts {
    issuer: String,
    key: KeyPair,
    /// What becomes of requests for what it is, for its keys, for tokens, for people.
    says: Mutex<[Says; 4]>,
    /// How often it was asked for its keys.
    looks: AtomicUsize,
}

/// One response.
#[derive(Clone)]
enum Says {
    Json(Value),
    /// More than anybody reads.
    Endless,
    /// Nothing, and keeps the connection.
    Nothing,
    To(String),
}

const METADATA: usize = 0;
const KEYS: usize = 1;
const TOKEN: usize = 2;
const PEOPLE: usize = 3;

impl Hostile {
    async fn start() -> (Self, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let says = Mutex::new([Says::Json(metadata(&issuer)), Says::Json(keys(&key)), Says::Nothing, Says::Nothing]);
        let hostile = Self(Arc::new(Parts { issuer, key, says, looks: AtomicUsize::new(0) }));
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(async |State(it): State<Self>| it.respond(METADATA)))
            .route("/keys", get(async |State(it): State<Self>| it.respond(KEYS)))
            .route("/token", post(async |State(it): State<Self>| it.respond(TOKEN)))
            .route("/people", get(async |State(it): State<Self>| it.respond(PEOPLE)))
            .with_state(hostile.clone());
        let server = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (hostile, AbortOnDropHandle::new(server))
    }

    fn say(&self, of: usize, what: Says) {
        self.0.says.lock().unwrap()[of] = what;
    }

    fn respond(&self, of: usize) -> Response {
        if of == KEYS {
            self.0.looks.fetch_add(1, Ordering::Relaxed);
        }
        let says = self.0.says.lock().unwrap()[of].clone();
        match says {
            Says::Json(body) => Json(body).into_response(),
            Says::Endless => {
                let pieces = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 64 * 1024]));
                ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response()
            }
            Says::Nothing => {
                let nothing = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
                ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(nothing)).into_response()
            }
            Says::To(url) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, url)]).into_response(),
        }
    }

    /// Signed as it says of itself that it signs.
    fn signed(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let signature = self.0.key.sign(signed.as_bytes()).unwrap();
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// Has it give this ID token for the next code.
    fn give(&self, id_token: Option<String>) {
        let token = json!({"access_token": ACCESS_TOKEN, "token_type": "Bearer", "id_token": id_token});
        self.say(TOKEN, Says::Json(token));
    }
}

fn metadata(issuer: &str) -> Value {
    json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "userinfo_endpoint": format!("{issuer}/people"),
        "jwks_uri": format!("{issuer}/keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        // It would be believed anything, if it had its way.
        "id_token_signing_alg_values_supported": ["none", "HS256", "EdDSA"],
    })
}

fn keys(key: &KeyPair) -> Value {
    let x = BASE64.encode(key.public_key_raw());
    json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x, "kid": KEY_ID, "use": "sig", "alg": "EdDSA"}]})
}

fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()))
}

/// A sign-in that was begun, of a host where Ada has an account, and what an ID token about her says for it.
struct Stage {
    hostile: Hostile,
    host: Host,
    _server: AbortOnDropHandle<()>,
}

impl Stage {
    async fn new() -> Self {
        let (hostile, server) = Hostile::start().await;
        let host = Host::with(|config| {
            configure(config, &hostile.0.issuer);
            config.timing.provider = Duration::from_millis(500);
        })
        .await;
        host.user("ada@example.com", "acme", Role::Owner).await;
        Self { hostile, host, _server: server }
    }

    /// Signs in, and has the provider give what `token` makes of the claims that it should give.
    async fn sign_in(&self, token: impl FnOnce(&Hostile, Value) -> Option<String>) -> crate::support::Answer {
        let browser = Browser::of(&self.host);
        let begun = browser.begin().await;
        let url = url::Url::parse(&begun.url).unwrap();
        let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
        let now = Timestamp::now().as_second();
        let claims = json!({
            "iss": self.hostile.0.issuer, "sub": "ada", "aud": "sandpiper", "exp": now + 300, "iat": now,
            "nonce": of("nonce"), "email": "ada@example.com", "email_verified": true,
        });
        self.hostile.give(token(&self.hostile, claims));
        let callback = format!("/dashboard/sign-in/oidc/callback?code=any&state={}", of("state"));
        browser.end(&begun, &callback).await
    }
}

fn header() -> Value {
    json!({"alg": "EdDSA", "kid": KEY_ID})
}

/// Claims with others in their place; null takes one away.
fn with(mut claims: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            _ => claims[name] = value.clone(),
        }
    }
    claims
}

const UNBELIEVABLE: &str = "is not as it must be, and nobody was signed in";

#[tokio::test]
async fn a_token_that_is_not_of_the_provider_for_this_sign_in_is_not_believed() {
    let stage = Stage::new().await;
    let now = Timestamp::now().as_second();
    let other = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let hash = |token: &str| BASE64.encode(&Sha256::digest(token)[..16]);
    type Made<'a> = Box<dyn FnOnce(&Hostile, Value) -> Option<String> + 'a>;
    let but = |changes: Value| -> Made<'_> {
        Box::new(move |hostile, claims| Some(hostile.signed(&header(), &with(claims, changes))))
    };
    let cases: Vec<(&str, Made<'_>)> = vec![
        ("none", Box::new(|_, _| None)),
        ("no token", Box::new(|_, _| Some("no token".to_owned()))),
        ("unsigned", Box::new(|_, claims| Some(unsigned(&json!({"alg": "none"}), &claims) + "."))),
        ("of no signature", Box::new(|_, claims| Some(unsigned(&header(), &claims) + "."))),
        (
            "altered",
            Box::new(|hostile, claims| {
                let signed = hostile.signed(&header(), &with(claims.clone(), json!({"sub": "eve"})));
                let (_, signature) = signed.rsplit_once('.').unwrap();
                Some(format!("{}.{signature}", unsigned(&header(), &claims)))
            }),
        ),
        (
            "by somebody else",
            Box::new(|_, claims| {
                let signed = unsigned(&header(), &claims);
                let signature = other.sign(signed.as_bytes()).unwrap();
                Some(format!("{signed}.{}", BASE64.encode(signature)))
            }),
        ),
        (
            "under the secret of the client",
            Box::new(|_, claims| {
                let signed = unsigned(&json!({"alg": "HS256"}), &claims);
                let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
                mac.update(signed.as_bytes());
                Some(format!("{signed}.{}", BASE64.encode(mac.finalize().into_bytes())))
            }),
        ),
        ("of another issuer", but(json!({"iss": "https://login.example.com"}))),
        ("for another client", but(json!({"aud": "another"}))),
        ("for another client, too", but(json!({"aud": ["sandpiper", "another"]}))),
        ("for another party", but(json!({"azp": "another"}))),
        ("for nobody", but(json!({"aud": null}))),
        ("of another sign-in", but(json!({"nonce": "another"}))),
        ("of no sign-in", but(json!({"nonce": null}))),
        ("over", but(json!({"exp": now - 1, "iat": now - 60}))),
        ("without an end", but(json!({"exp": null}))),
        ("old", but(json!({"iat": now - 3600}))),
        ("of the future", but(json!({"iat": now + 3600, "exp": now + 7200}))),
        ("of nobody", but(json!({"sub": ""}))),
        ("of a long name", but(json!({"sub": "a".repeat(256)}))),
        ("with another access token", but(json!({"at_hash": hash("another")}))),
    ];
    for (what, made) in cases {
        let answer = stage.sign_in(made).await;
        assert_eq!(answer.status.as_u16(), 502, "{what}: {}", answer.text);
        refused(&answer, 502, UNBELIEVABLE);
        assert!(!answer.text.contains("another") && !answer.text.contains(ACCESS_TOKEN), "{what}: {}", answer.text);
    }

    // All that is wrong with those is what was made wrong.
    let answer = stage
        .sign_in(|hostile, claims| {
            let party = json!({"azp": "sandpiper", "aud": ["sandpiper"]});
            Some(hostile.signed(&header(), &with(claims, party)))
        })
        .await;
    session(&answer);
    assert!(!stage.host.stores(ACCESS_TOKEN).await && !stage.host.stores(SECRET).await);
}

#[tokio::test]
async fn keys_that_are_not_known_are_asked_for_once_a_minute_at_most() {
    let stage = Stage::new().await;
    let unknown = |hostile: &Hostile, claims| Some(hostile.signed(&json!({"alg": "EdDSA", "kid": "made up"}), &claims));

    for _ in 0..4 {
        refused(&stage.sign_in(unknown).await, 502, UNBELIEVABLE);
    }

    assert_eq!(stage.hostile.0.looks.load(Ordering::Relaxed), 2, "at first, and for the first of them");
    session(&stage.sign_in(|hostile, claims| Some(hostile.signed(&header(), &claims))).await);
}

#[tokio::test]
async fn nobody_waits_for_a_provider_that_says_too_much_or_nothing() {
    for of in [METADATA, KEYS] {
        for says in [Says::Endless, Says::Nothing, Says::To("http://127.0.0.1:1/".to_owned()), Says::Json(json!([]))] {
            let stage = Stage::new().await;
            stage.hostile.say(of, says);
            let answer = Browser::of(&stage.host).get("/dashboard/sign-in/oidc", "").await;
            refused(&answer, 503, "does not respond");
        }
    }
    let stage = Stage::new().await;
    for says in [Says::Endless, Says::Nothing] {
        let browser = Browser::of(&stage.host);
        let begun = browser.begin().await;
        stage.hostile.say(TOKEN, says);
        let url = url::Url::parse(&begun.url).unwrap();
        let (_, state) = url.query_pairs().find(|(name, _)| name == "state").unwrap();
        let callback = format!("/dashboard/sign-in/oidc/callback?code=any&state={state}");
        refused(&browser.end(&begun, &callback).await, 503, "does not respond");
    }
}

#[tokio::test]
async fn a_provider_that_names_another_or_an_open_address_is_none() {
    for changes in [
        json!({"issuer": "https://login.example.com"}),
        json!({"authorization_endpoint": "http://login.example.com/authorize"}),
        json!({"authorization_endpoint": "javascript:alert(1)"}),
        json!({"jwks_uri": "http://login.example.com/keys"}),
    ] {
        let stage = Stage::new().await;
        stage.hostile.say(METADATA, Says::Json(with(metadata(&stage.hostile.0.issuer), changes.clone())));
        let answer = Browser::of(&stage.host).get("/dashboard/sign-in/oidc", "").await;
        assert_eq!(answer.status.as_u16(), 503, "{changes}: {}", answer.text);
    }
}

#[tokio::test]
async fn what_is_told_beside_the_token_is_of_the_same_person_or_of_nobody() {
    let stage = Stage::new().await;
    let silent = |hostile: &Hostile, claims| {
        Some(hostile.signed(&header(), &with(claims, json!({"email": null, "email_verified": null}))))
    };
    let ada = json!({"sub": "ada", "email": "ada@example.com", "email_verified": true});
    for says in [
        Says::Json(with(ada.clone(), json!({"sub": "eve"}))),
        Says::Json(json!([])),
        Says::Nothing,
        Says::Endless,
        Says::To(format!("{}/token", stage.hostile.0.issuer)),
    ] {
        stage.hostile.say(PEOPLE, says);
        refused(&stage.sign_in(silent).await, 403, "tells no e-mail address of yours");
    }

    stage.hostile.say(PEOPLE, Says::Json(ada));
    session(&stage.sign_in(silent).await);
}
