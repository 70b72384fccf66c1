//! Starting a sandbox; and the same as code.

use askama::Template;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use sandpiper_web::view::own_url;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::Problem;
use crate::form::Fields;
use crate::response::{Refusal, page};
use crate::view::segment;
use crate::visit::{Order, Visit};

#[derive(Template)]
#[template(path = "new_sandbox.html")]
struct Page {
    visit: Visit,
    templates: Vec<String>,
    entered: Entered,
    code: Code,
}

/// What the form holds.
struct Entered {
    template: String,
    minutes: String,
    pause: bool,
    internet: bool,
    capture_output: bool,
    allow_out: String,
    metadata: String,
    envs: String,
}

impl Default for Entered {
    fn default() -> Self {
        let (template, minutes, none) = ("base".to_owned(), "5".to_owned(), String::new);
        Self {
            template,
            minutes,
            pause: false,
            internet: true,
            capture_output: false,
            allow_out: none(),
            metadata: none(),
            envs: none(),
        }
    }
}

impl Entered {
    fn of(fields: &Fields) -> Self {
        let text = |name| fields.text(name).unwrap_or_default().to_owned();
        Self {
            template: text("template"),
            minutes: text("minutes"),
            pause: fields.is_ticked("pause"),
            internet: fields.is_ticked("internet"),
            capture_output: fields.is_ticked("capture_output"),
            allow_out: text("allow_out"),
            metadata: text("metadata"),
            envs: text("envs"),
        }
    }
}

#[derive(Deserialize)]
struct Templates {
    templates: Vec<Known>,
}

/// A template.
#[derive(Deserialize)]
struct Known {
    slug: String,
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

/// `GET /dashboard/{team}/new`
pub(crate) async fn show(visit: Visit, headers: HeaderMap) -> Result<Response, Refusal> {
    let entered = Entered::default();
    let body = json!({"template": entered.template, "timeout": 300});
    respond(visit, entered, &body, &headers).await
}

/// `POST /dashboard/{team}/new`: starts it, or shows the code that would.
pub(crate) async fn create(visit: Visit, headers: HeaderMap, order: Order) -> Result<Response, Refusal> {
    let body = body(&order.fields)?;
    if order.fields.is_ticked("show_code") {
        return respond(visit, Entered::of(&order.fields), &body, &headers).await;
    }
    let created: Created = order.send(Method::POST, "/v1/sandboxes", Some(body)).await?;
    Ok(order.then(&format!("sandboxes/{}", segment(&created.id))).into_response())
}

async fn respond(visit: Visit, entered: Entered, body: &Value, headers: &HeaderMap) -> Result<Response, Refusal> {
    let Templates { templates } = visit.get("/v1/templates?limit=100").await?;
    let templates = templates.into_iter().map(|template| template.slug).collect();
    let code = Code::of(body, &own_url(headers));
    Ok(page(&Page { visit, templates, entered, code }))
}

/// The body of the request that the form stands for.
fn body(fields: &Fields) -> Result<Value, Problem> {
    let pairs = |name| -> Result<Map<String, Value>, Problem> {
        Ok(fields.pairs(name)?.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
    };
    let mut body = json!({"template": fields.text("template").unwrap_or("base")});
    if let Some(minutes) = fields.number("minutes")? {
        body["timeout"] = json!(minutes.saturating_mul(60));
    }
    if fields.is_ticked("pause") {
        body["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    }
    if !fields.is_ticked("internet") {
        body["allow_internet_access"] = json!(false);
    }
    if fields.is_ticked("capture_output") {
        body["capture_output"] = json!(true);
    }
    let allow_out = fields.lines("allow_out");
    if !allow_out.is_empty() {
        body["allow_out"] = json!(allow_out);
    }
    for name in ["metadata", "envs"] {
        let pairs = pairs(name)?;
        if !pairs.is_empty() {
            body[name] = Value::Object(pairs);
        }
    }
    Ok(body)
}

/// One request, in the ways to make it.
#[derive(Debug)]
struct Code {
    curl: String,
    cli: String,
    python: String,
    javascript: String,
}

impl Code {
    fn of(body: &Value, url: &str) -> Self {
        Self {
            curl: curl(body, url),
            cli: cli(body, url),
            python: python(body, url),
            javascript: javascript(body, url),
        }
    }
}

fn curl(body: &Value, url: &str) -> String {
    let (address, body) = (shell(&format!("{url}/v1/sandboxes")), shell(&format!("{body:#}")));
    format!(
        "curl -X POST {address} \\\n  -H \"Authorization: Bearer $SANDPIPER_API_KEY\" \\\n  \
         -H 'Content-Type: application/json' \\\n  -d {body}"
    )
}

fn cli(body: &Value, url: &str) -> String {
    let mut words = vec![format!("export SANDPIPER_URL={}\nsandpiper run --keep", shell(url))];
    let text = |value: &Value| shell(value.as_str().unwrap_or_default());
    words.push(format!("--template {}", text(&body["template"])));
    words.extend(body["timeout"].as_u64().map(|timeout| format!("--timeout {timeout}")));
    if body["lifecycle"].is_object() {
        words.push("--on-timeout pause --auto-resume".to_owned());
    }
    if body["allow_internet_access"] == json!(false) {
        words.push("--no-internet".to_owned());
    }
    words
        .extend(body["allow_out"].as_array().into_iter().flatten().map(|entry| format!("--allow-out {}", text(entry))));
    if body["capture_output"] == json!(true) {
        words.push("--capture-output".to_owned());
    }
    words.push("-t -- bash".to_owned());
    words.join(" ")
}

fn python(body: &Value, url: &str) -> String {
    let mut arguments = vec![literal(&body["template"])];
    arguments.extend(body["timeout"].as_u64().map(|timeout| format!("timeout={timeout}")));
    for name in ["metadata", "envs"] {
        arguments.extend(body.get(name).map(|value| format!("{name}={}", literal(value))));
    }
    if body["allow_internet_access"] == json!(false) {
        arguments.push("allow_internet_access=False".to_owned());
    }
    arguments.extend(body.get("allow_out").map(|entries| format!("network={{\"allow_out\": {}}}", literal(entries))));
    if body["lifecycle"].is_object() {
        arguments.push("lifecycle={\"on_timeout\": \"pause\", \"auto_resume\": True}".to_owned());
    }
    format!(
        "# E2B_API_URL={url} E2B_API_KEY=e2b_…\nfrom e2b import Sandbox\n\nsandbox = Sandbox.create({})\n\
         print(sandbox.commands.run(\"uname -a\").stdout)",
        arguments.join(", ")
    )
}

fn javascript(body: &Value, url: &str) -> String {
    let mut options = Vec::new();
    options.extend(body["timeout"].as_u64().map(|timeout| format!("timeoutMs: {timeout}_000")));
    for name in ["metadata", "envs"] {
        options.extend(body.get(name).map(|value| format!("{name}: {}", literal(value))));
    }
    if body["allow_internet_access"] == json!(false) {
        options.push("allowInternetAccess: false".to_owned());
    }
    options.extend(body.get("allow_out").map(|entries| format!("network: {{ allowOut: {} }}", literal(entries))));
    if body["lifecycle"].is_object() {
        options.push("lifecycle: { onTimeout: \"pause\", autoResume: true }".to_owned());
    }
    format!(
        "// E2B_API_URL={url} E2B_API_KEY=e2b_…\nimport {{ Sandbox }} from \"e2b\"\n\n\
         const sandbox = await Sandbox.create({}, {{ {} }})\n\
         console.log((await sandbox.commands.run(\"uname -a\")).stdout)",
        literal(&body["template"]),
        options.join(", ")
    )
}

/// Text, lists and maps of it read the same in JSON, Python and JavaScript.
fn literal(value: &Value) -> String {
    value.to_string()
}

/// One word for a POSIX shell (2.2.2).
fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word_in_a_shell() {
        assert_eq!(shell("base:1"), "base:1");
        assert_eq!(shell("a b"), "'a b'");
        assert_eq!(shell("it's; $(x)"), r"'it'\''s; $(x)'");
        assert_eq!(shell(""), "''");
    }

    #[test]
    fn the_code_says_what_the_form_said() {
        let body = json!({
            "template": "base", "timeout": 600, "allow_internet_access": false, "allow_out": ["a.example:443"],
            "metadata": {"name": "it's \"x\""}, "lifecycle": {"on_timeout": "pause", "auto_resume": true}, "capture_output": true,
        });
        let code = Code::of(&body, "https://host.example");
        assert!(code.curl.contains("curl -X POST https://host.example/v1/sandboxes"), "{}", code.curl);
        assert!(code.curl.contains(r#"it'\''s \"x\""#), "{}", code.curl);
        let cli = "sandpiper run --keep --template base --timeout 600 --on-timeout pause --auto-resume --no-internet \
                   --allow-out a.example:443 --capture-output -t -- bash";
        assert!(code.cli.ends_with(cli), "{}", code.cli);
        assert!(code.python.contains(r#"Sandbox.create("base", timeout=600, metadata={"name":"it's \"x\""}"#));
        assert!(code.javascript.contains(r#"allowInternetAccess: false, network: { allowOut: ["a.example:443"] }"#));
    }

    #[test]
    fn the_api_is_where_the_page_was_reached() {
        let of = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            own_url(&headers)
        };
        assert_eq!(of(&[("host", "localhost:7070")]), "http://localhost:7070");
        assert_eq!(of(&[("host", "api.example")]), "https://api.example");
        assert_eq!(of(&[("host", "api.example"), ("origin", "http://api.example")]), "http://api.example");
        assert_eq!(of(&[("host", "api.example"), ("origin", "https://other.example")]), "https://api.example");
    }
}
