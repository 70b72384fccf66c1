//! What the E2B SDKs rely on: one plain origin, hosts with the sandbox's id, signed URLs, tokens for ports.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;

const PLAIN: &str = "127.0.0.1:7080";

fn fields(port: &'static str) -> [(&'static str, &'static str); 2] {
    [("e2b-sandbox-id", SANDBOX), ("e2b-sandbox-port", port)]
}

/// The query of a URL that the SDKs would sign.
fn signed(house: &House, path: &str, operation: &str, expiration: Option<i64>) -> String {
    let token = house.sessions.lasting(SANDBOX);
    let expiration = expiration.map(|at| at.to_string());
    let end = expiration.as_ref().map(|at| format!(":{at}")).unwrap_or_default();
    let digest = Sha256::digest(format!("{path}:{operation}:user:{token}{end}"));
    let signature = format!("v1_{}", STANDARD_NO_PAD.encode(digest)).replace('+', "%2B").replace('/', "%2F");
    let end = expiration.map(|at| format!("&signature_expiration={at}")).unwrap_or_default();
    format!("/files?path={path}&username=user&signature={signature}{end}")
}

#[tokio::test]
async fn header_fields_lead_to_the_data_plane_and_to_ports_on_any_plain_host() {
    let house = House::new(mirror()).await;
    let token = house.sessions.lasting(SANDBOX);
    let [id, port] = fields("49983");

    for host in [PLAIN, "localhost:7080", "sandbox.sandbox.localhost"] {
        let (status, seen) = house.get(host, "/files?path=a", &[id, port, ("x-access-token", &token)]).await;
        assert_eq!(status, 200, "{host}: {seen}");
        assert!(seen.starts_with("GET /files?path=a on 49983\n"), "{seen}");
    }
    let (_, seen) = house.get(PLAIN, "/", &fields("8000")).await;
    assert!(seen.starts_with("GET / on 8000\n"), "{seen}");
    let (status, _) = house.get(PLAIN, "/files", &[id, port]).await;
    assert_eq!(status, 401, "the fields are an address, not a credential");
}

#[tokio::test]
async fn half_an_address_is_400_and_none_is_404() {
    let house = House::new(mirror()).await;
    let [id, port] = fields("49983");
    for half in [id, port] {
        let (status, answer) = house.get(PLAIN, "/health", &[half]).await;
        assert!(status == 400 && answer.contains("missing header"), "{answer}");
    }
    assert_eq!(house.get(PLAIN, "/health", &[]).await.0, 404);
}

#[tokio::test]
async fn the_id_stands_in_host_names_and_in_the_bodies_of_refusals() {
    let house = House::new(mirror()).await;
    let (_, seen) = house.get(&format!("8000-{SANDBOX}.sandbox.localhost"), "/", &[]).await;
    assert!(seen.starts_with("GET / on 8000\n"), "{seen}");

    let refusal =
        async |host: &str| -> Value { serde_json::from_str(&house.get(host, "/health", &[]).await.1).expect("JSON") };
    let absent = "sbx06bbbbbbbbbbbbbbbbbbbb";
    let told = refusal(&format!("49983-{absent}.sandbox.localhost")).await;
    assert_eq!((&told["sandboxId"], &told["code"]), (&json!(absent), &json!(502)));
    assert_eq!(told["message"], "The sandbox was not found");
    let told = refusal(&format!("8002-{SANDBOX}.sandbox.localhost")).await;
    assert_eq!((&told["sandboxId"], &told["port"], &told["code"]), (&json!(SANDBOX), &json!(8002), &json!(502)));
    assert_eq!(told["message"], "The sandbox is running but port is not open");
    assert_eq!(refusal(CLOSED).await.get("sandboxId"), None, "a route token says nothing of the id");
}

#[tokio::test]
async fn a_signed_url_opens_its_one_file_on_a_host_of_its_own_and_on_a_plain_one() {
    let house = House::new(mirror()).await;
    let own = format!("49983-{SANDBOX}.sandbox.localhost");
    let now = jiff::Timestamp::now().as_second();

    for host in [own.as_str(), PLAIN] {
        let url = signed(&house, "a.txt", "read", None);
        let (status, seen) = house.get(host, &url, &[]).await;
        assert!(status == 200 && seen.starts_with(&format!("GET {url} on 49983\n")), "{host}: {seen}");
        assert_eq!(house.get(host, &signed(&house, "a.txt", "read", Some(now + 60)), &[]).await.0, 200, "{host}");

        let (status, answer) = house.get(host, &signed(&house, "a.txt", "read", Some(now - 60)), &[]).await;
        assert!(status == 401 && answer.contains("signature is already expired"), "{answer}");
    }
    let changed = signed(&house, "a.txt", "read", None).replace("a.txt", "b.txt");
    let (status, answer) = house.get(&own, &changed, &[]).await;
    assert!(status == 401 && answer.contains("invalid signature"), "{answer}");
    assert_eq!(house.get(PLAIN, &changed, &[]).await.0, 404, "it is nobody's");
    assert_eq!(house.get(&own, &signed(&house, "a.txt", "write", None), &[]).await.0, 401, "one for writing");
    let elsewhere = signed(&house, "a.txt", "read", None).replace("/files", "/process.Process/List");
    assert_eq!(house.get(&own, &elsewhere, &[]).await.0, 401);
}

#[tokio::test]
async fn an_access_token_alone_leads_to_the_data_plane_of_its_sandbox() {
    let house = House::new(mirror()).await;
    let token = house.sessions.lasting(SANDBOX);

    let (status, seen) = house.get(PLAIN, "/files?path=a", &[("x-access-token", &token)]).await;

    assert!(status == 200 && seen.starts_with("GET /files?path=a on 49983\n"), "{seen}");
    assert!(!seen.contains(&token), "{seen}");
    let [id, port] = fields("8001");
    let (_, seen) = house.get(PLAIN, "/", &[id, port, ("x-access-token", &token)]).await;
    assert!(seen.starts_with("GET / on 8001\n"), "the fields decide: {seen}");
    let absent = house.sessions.lasting("sbx06bbbbbbbbbbbbbbbbbbbb");
    let (status, answer) = house.get(PLAIN, "/health", &[("x-access-token", &absent)]).await;
    assert!(status == 502 && answer.contains("was not found"), "{answer}");
    let (revoked, _) = house.sessions.mint(SANDBOX, Some("revoked"));
    house.sessions.revoke(vec!["revoked".into()]).expect("it is noted");
    assert_eq!(house.get(PLAIN, "/files", &[("x-access-token", &revoked)]).await.0, 401);
    for forged in [token.replace("spt1_", "spt1_A"), "an-application's".into()] {
        assert_eq!(house.get(PLAIN, "/files", &[("x-access-token", &forged)]).await.0, 404, "{forged}");
    }
}

#[tokio::test]
async fn every_port_is_open_where_all_are_and_to_holders_of_a_token_where_they_are_not_public() {
    let house = House::new(mirror()).await;
    house.change(|target| (target.exposed_ports, target.previews.all_ports) = (Vec::new(), true));
    assert_eq!(house.get(PLAIN, "/", &fields("8001")).await.0, 200);
    assert_eq!(house.get(PLAIN, "/", &fields("8002")).await.0, 502, "nothing listens there");

    house.change(|target| target.allow_public_traffic = false);
    let (traffic, access) = (house.sessions.traffic(SANDBOX), house.sessions.lasting(SANDBOX));
    let [id, port] = fields("8001");
    let (status, answer) = house.get(PLAIN, "/", &[id, port]).await;
    assert!(status == 403 && answer.contains("'e2b-traffic-access-token' is missing"), "{answer}");
    let wrong = house.sessions.traffic("sbx06bbbbbbbbbbbbbbbbbbbb");
    let (status, answer) = house.get(PLAIN, "/", &[id, port, ("e2b-traffic-access-token", &wrong)]).await;
    assert!(status == 403 && answer.contains("invalid"), "{answer}");
    for (name, token) in [("e2b-traffic-access-token", &traffic), ("x-access-token", &access)] {
        let (status, seen) = house.get(PLAIN, "/", &[id, port, (name, token)]).await;
        assert!(status == 200 && !seen.contains(token.as_str()), "{seen}");
    }
    let [_, data_plane] = fields("49983");
    let (status, _) = house.get(PLAIN, "/files", &[id, data_plane, ("e2b-traffic-access-token", &traffic)]).await;
    assert_eq!(status, 401, "a traffic token opens ports alone");
}

#[tokio::test]
async fn a_masked_host_is_what_the_guests_servers_read() {
    let house = House::new(mirror()).await;
    house.change(|target| target.previews.mask_host = Some("localhost:${PORT}".into()));
    let (_, seen) = house.get(PUBLIC, "/", &[]).await;
    assert!(seen.contains("\nhost: localhost:8000\n"), "{seen}");
    assert!(seen.contains(&format!("\nx-forwarded-host: {PUBLIC}\n")), "{seen}");

    let token = house.token();
    let (_, seen) = house.get(HOST, "/files", &[("x-access-token", &token)]).await;
    assert!(seen.contains(&format!("\nhost: {HOST}\n")), "the data plane is not masked: {seen}");
}

#[tokio::test]
async fn a_page_may_ask_a_plain_origin_with_the_fields() {
    let house = House::new(mirror()).await;
    let preflight = |wanted: &'static str| {
        Request::options("/files")
            .header("host", PLAIN)
            .header("origin", "https://app.example")
            .header("access-control-request-method", "GET")
            .header("access-control-request-headers", wanted)
            .body(Full::<Bytes>::default())
            .expect("valid")
    };
    assert_eq!(house.send(preflight("e2b-sandbox-id, e2b-sandbox-port")).await.status(), 204);
    assert_eq!(house.send(preflight("x-other")).await.status(), 404);
}
