//! The examples of the document: every operation has one, they fit the schemas, and what they send is accepted.

use sandpiper_accounts::Role;
use serde_json::{Map, Value, json};

use crate::support::{Host, request, with_header};

fn document() -> Value {
    serde_json::from_str(&sandpiper_api::document::text().unwrap()).unwrap()
}

/// Method, path and description of every operation.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            found.push((method.clone(), path.clone(), operation));
        }
    }
    found
}

/// Of the document's schemas: why a value does not fit one.
struct Schemas<'d>(&'d Map<String, Value>);

impl<'d> Schemas<'d> {
    fn of(document: &'d Value) -> Self {
        Self(document["components"]["schemas"].as_object().unwrap())
    }

    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.strip_prefix("#/components/schemas/").unwrap();
            return self.check(&self.0[name], value, at);
        }
        if let Some(all) = schema["allOf"].as_array() {
            // Each knows its own fields alone.
            return all.iter().try_for_each(|one| self.check(one, value, at));
        }
        if let Some(any) = schema["oneOf"].as_array() {
            let tried: Vec<_> = any.iter().map(|one| self.check(one, value, at)).collect();
            let fits = tried.iter().any(Result::is_ok);
            return if fits { Ok(()) } else { Err(format!("{at}: fits none: {tried:?}")) };
        }
        if let Some(words) = schema["enum"].as_array() {
            return if words.contains(value) { Ok(()) } else { Err(format!("{at}: {value} is not one of {words:?}")) };
        }
        self.check_type(schema, value, at)?;
        if schema["format"] == "date-time" && !value.is_null() {
            let text = value.as_str().unwrap_or_default();
            text.parse::<jiff::Timestamp>().map_err(|error| format!("{at}: {error}"))?;
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            self.check(&schema["items"], item, &format!("{at}[{index}]"))?;
        }
        let Some(fields) = value.as_object() else { return Ok(()) };
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap();
            fields.get(name).ok_or_else(|| format!("{at}: {name} is missing"))?;
        }
        for (name, field) in fields {
            let known = &schema["properties"][name];
            let other = &schema["additionalProperties"];
            let schema = if known.is_null() { other } else { known };
            if !schema.is_null() {
                self.check(schema, field, &format!("{at}.{name}"))?;
            }
        }
        Ok(())
    }

    fn check_type(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let of_value = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let fits = |word: &Value| *word == of_value || (*word == "number" && of_value == "integer");
        let is_right = match &schema["type"] {
            Value::Null => true,
            Value::Array(words) => words.iter().any(fits),
            word => fits(word),
        };
        if is_right { Ok(()) } else { Err(format!("{at}: {value} is no {}", schema["type"])) }
    }

    /// Every field that a schema has a name for.
    fn fields(&self, schema: &Value) -> Vec<String> {
        if let Some(name) = schema["$ref"].as_str() {
            return self.fields(&self.0[name.strip_prefix("#/components/schemas/").unwrap()]);
        }
        let parts = ["allOf", "oneOf"].into_iter().filter_map(|word| schema[word].as_array()).flatten();
        let own = schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned());
        parts.flat_map(|part| self.fields(part)).chain(own).collect()
    }
}

/// The schema of a body and its example.
fn body(content: &Value) -> Option<(&Value, &Value)> {
    let content = &content["content"]["application/json"];
    (!content.is_null()).then(|| (&content["schema"], &content["example"]))
}

/// What the document lists first of the successes.
fn success(operation: &Value) -> (u16, &Value) {
    let (status, response) = operation["responses"].as_object().unwrap().iter().next().unwrap();
    (status.parse().unwrap(), response)
}

#[test]
fn every_operation_has_an_example_that_fits_its_schemas() {
    let document = document();
    let schemas = Schemas::of(&document);
    for (_, _, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        for (what, content) in [("request", &operation["requestBody"]), ("response", success(operation).1)] {
            let Some((schema, example)) = body(content) else { continue };
            let at = format!("{id}, {what}");
            assert!(!example.is_null(), "{at}: api/src/examples.rs has no example");
            schemas.check(schema, example, &at).unwrap();
            let (fields, known) = (example.as_object().unwrap(), schemas.fields(schema));
            let unknown: Vec<_> = fields.keys().filter(|name| !known.contains(name)).collect();
            assert!(unknown.is_empty() || known.is_empty(), "{at}: {unknown:?}");
        }
    }
}

#[tokio::test]
async fn what_the_examples_send_is_accepted_and_what_comes_back_fits_too() {
    let host = Host::new().await;
    let document = document();
    let schemas = Schemas::of(&document);
    // Those that end something come last.
    let mut operations = operations(&document);
    operations.retain(|(_, path, operation)| {
        // `accounts::the_examples_are_accepted`, and `sandbox_files`, which has a data plane.
        if ["accounts", "files"].map(Value::from).contains(&operation["tags"][0]) {
            return false;
        }
        let is_apart = ["/v1/volumes", "/v1/templates/", "/v1/webhooks"].iter().any(|other| path.starts_with(other));
        path.starts_with("/v1/") && !is_apart
    });
    operations.sort_by_key(|(method, _, operation)| {
        (method == "delete", operation["operationId"] == "delete_sandbox", operation["operationId"] == "show_port")
    });
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
    for (method, path, operation) in operations {
        let id = operation["operationId"].as_str().unwrap();
        let ours = if path.starts_with("/v1/checkpoints") { &checkpoint } else { &sandbox };
        let query = match id {
            "explain_network" => "?destination=tcp:example.com:443".to_owned(),
            "show_latest_metrics" => format!("?ids={sandbox}"),
            _ => String::new(),
        };
        let path = path.replace("{id}", ours).replace("{port}", "8000") + &query;
        if matches!(id, "create_session" | "fork_sandbox" | "create_checkpoint" | "replace_network") {
            // Pausing is among the operations.
            host.call("POST", &format!("/v1/sandboxes/{sandbox}/resume"), &host.write, None).await.expect(200);
        }
        let sent = body(&operation["requestBody"]).map(|(_, example)| example.clone());

        let answer = host.call(&method.to_uppercase(), &path, &host.write, sent).await;

        let (status, response) = success(operation);
        assert_eq!(answer.status.as_u16(), status, "{id}: {}", answer.text);
        if let Some((schema, _)) = body(response) {
            schemas.check(schema, &answer.json(), id).unwrap();
        }
    }
}

#[tokio::test]
async fn what_the_examples_of_webhooks_send_is_accepted_and_what_comes_back_fits_too() {
    let host = Host::new().await;
    let document = document();
    let schemas = Schemas::of(&document);
    let admin = host.user("ada@example.com", "acme", Role::Admin).await.token;
    let steps = [
        "list_webhooks",
        "show_webhook",
        "test_webhook",
        "list_webhook_deliveries",
        "show_webhook_delivery",
        "rotate_webhook_secret",
        // After which what waits is over.
        "change_webhook",
        "redeliver_webhook",
        "delete_webhook",
    ];
    let operations = operations(&document);
    let of_webhooks = operations.iter().filter(|(_, path, _)| path.starts_with("/v1/webhooks"));
    assert_eq!(of_webhooks.count(), steps.len() + 1, "every operation, and the one that creates the webhook");
    let (mut webhook, mut delivery) = (String::new(), String::new());
    for id in ["create_webhook"].into_iter().chain(steps) {
        let (method, path, operation) = operations.iter().find(|(_, _, one)| one["operationId"] == id).unwrap();
        let sent = body(&operation["requestBody"]).map(|(_, example)| example.clone());
        let path = path.replace("{id}", &webhook).replace("{delivery}", &delivery);
        let send = async |path: &str, sent| {
            let request = request(&method.to_uppercase(), path, &admin, sent);
            host.send(with_header(request, "sandpiper-team", "acme")).await
        };

        let answer = send(&path, sent).await;

        let (status, response) = success(operation);
        assert_eq!(answer.status.as_u16(), status, "{id}: {}", answer.text);
        if let Some((schema, _)) = body(response) {
            schemas.check(schema, &answer.json(), id).unwrap();
        }
        match id {
            "create_webhook" => webhook = answer.json()["id"].as_str().unwrap().to_owned(),
            "test_webhook" => delivery = answer.json()["id"].as_str().unwrap().to_owned(),
            // The example has disabled it.
            "change_webhook" => drop(send(&path, Some(json!({"enabled": true}))).await.expect(200)),
            _ => {}
        }
    }
}

#[tokio::test]
async fn what_the_examples_of_volumes_send_is_accepted_and_what_comes_back_fits_too() {
    let host = Host::new().await;
    let document = document();
    let schemas = Schemas::of(&document);
    let (file, folder) = ("?path=/models/names.txt", "?path=/models");
    let steps = [
        ("write_volume_file", ""),
        ("make_volume_directory", folder),
        ("list_volumes", ""),
        ("show_volume", ""),
        ("read_volume_file", file),
        ("show_volume_path", file),
        ("change_volume_path", file),
        ("list_volume_directory", folder),
        ("delete_volume_path", folder),
        ("delete_volume_file", file),
        ("delete_volume", ""),
    ];
    let operations = operations(&document);
    let of_volumes = operations.iter().filter(|(_, path, _)| path.starts_with("/v1/volumes"));
    assert_eq!(of_volumes.count(), steps.len() + 1, "every operation, and the one that creates the volume");
    let mut volume = String::new();
    for (id, query) in [("create_volume", "")].into_iter().chain(steps) {
        let (method, path, operation) = operations.iter().find(|(_, _, one)| one["operationId"] == id).unwrap();
        let sent = body(&operation["requestBody"]).map(|(_, example)| example.clone());
        let path = path.replace("{id}", &volume);

        let response = host.call(&method.to_uppercase(), &format!("{path}{query}"), &host.write, sent).await;

        let success = &operation["responses"][response.status.as_str()];
        assert!(response.status.is_success() && !success.is_null(), "{id}: {}", response.text);
        if id == "create_volume" {
            volume = response.json()["id"].as_str().unwrap().to_owned();
        }
        // Without a wish, a file comes as bytes.
        if id != "read_volume_file"
            && let Some((schema, _)) = body(success)
        {
            schemas.check(schema, &response.json(), id).unwrap();
        }
    }
}

#[tokio::test]
async fn what_the_examples_of_templates_send_is_accepted_and_what_comes_back_fits_too() {
    let host = Host::new().await;
    let document = document();
    let schemas = Schemas::of(&document);
    let steps = [
        "upload_build_file",
        "list_build_files",
        "create_template",
        "update_template",
        "create_template_version",
        "list_template_versions",
        "show_build_logs",
        "cancel_template_version",
        "show_template_version",
        "show_template",
        "delete_template_version",
        "delete_template",
        "delete_build_file",
    ];
    let operations = operations(&document);
    let of_templates = operations.iter().filter(|(_, path, _)| path.starts_with("/v1/templates"));
    assert_eq!(of_templates.count(), steps.len() + 1, "every operation, and the list");
    let mut upload = String::new();
    for id in steps {
        let (method, path, operation) = operations.iter().find(|(_, _, one)| one["operationId"] == id).unwrap();
        let sent = body(&operation["requestBody"]).map(|(_, example)| example.clone());
        let path = path.replace("{id}", &upload).replace("{slug}", "node").replace("{version}", "1");

        let response = host.call(&method.to_uppercase(), &path, &host.write, sent).await;

        let success = &operation["responses"][response.status.as_str()];
        assert!(response.status.is_success() && !success.is_null(), "{id}: {}", response.text);
        if id == "upload_build_file" {
            upload = response.json()["id"].as_str().unwrap().to_owned();
        }
        if let Some((schema, _)) = body(success) {
            schemas.check(schema, &response.json(), id).unwrap();
        }
    }
}

#[test]
fn what_does_not_fit_is_found() {
    let document = document();
    let schemas = Schemas::of(&document);
    let schema = json!({"$ref": "#/components/schemas/Lifecycle"});
    let fits = |value: Value| schemas.check(&schema, &value, "it");
    assert_eq!(fits(json!({"on_timeout": "kill", "auto_resume": false, "pause_memory": true})), Ok(()));
    assert!(fits(json!({"on_timeout": "sleep", "auto_resume": false, "pause_memory": true})).is_err());
    assert!(fits(json!({"on_timeout": "kill", "auto_resume": 1, "pause_memory": true})).is_err());
    assert!(fits(json!({"on_timeout": "kill", "auto_resume": false})).is_err());
}
