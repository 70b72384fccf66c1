//! Responses to repeated requests to `/v1`: which parts of them are credentials, and what was made before.

use axum::http::request::Parts;
use axum::response::Response;
use sandpiper_http::error::ApiError;
use serde_json::{Map, Value};

use super::{checkpoints, sandboxes, templates, volumes};
use crate::auth::Caller;
use crate::mutation::{BodyRule, Face, Work};
use crate::state::App;

/// Of all requests here.
pub const FACE: Face = Face { body: body_rule, existing, hide, renew };

fn body_rule(parts: &Parts) -> BodyRule {
    if templates::uploads::is_upload(parts) { BodyRule::Stream } else { volumes::files::body_rule(parts) }
}

fn existing<'a>(
    app: &'a App,
    caller: &'a Caller,
    resource: Option<&'a str>,
    made: &'a str,
) -> Work<'a, Result<Option<Response>, ApiError>> {
    Box::pin(async move {
        let ids: Vec<&str> = made.split(',').collect();
        match (resource, ids.as_slice()) {
            // Whatever their slugs look like.
            (_, [id]) if id.starts_with("tpl") => templates::create::response_for_existing(app, caller, id).await,
            (_, [id]) if id.starts_with("ver") => {
                templates::versions::response_for_existing(app, caller, &(*id).into()).await
            }
            (None, [id]) if id.starts_with("vol") => {
                volumes::create::response_for_existing(app, caller, &(*id).into()).await
            }
            (None, [id]) => sandboxes::create::response_for_existing(app, caller, id).await,
            (Some(sandbox), [id]) if id.starts_with("ckp") => {
                checkpoints::response_for_existing(app, caller, &sandbox.into(), &(*id).into()).await
            }
            (Some(source), ids) => sandboxes::fork::response_for_existing(app, caller, source, ids).await,
            (None, _) => Ok(None),
        }
    })
}

fn hide(response: &mut Value) {
    for object in holders_of_sessions(response) {
        object.remove("session");
    }
    // An API key, the token of an invitation, the secret of a webhook: shown once.
    if let Some(response) = response.as_object_mut() {
        response.remove("key");
        response.remove("token");
        response.remove("secret");
    }
}

fn renew<'a>(app: &'a App, caller: &'a Caller, ids: &'a [&'a str], response: &'a mut Value) -> Work<'a, ()> {
    Box::pin(async move {
        let agent = app.agent.on_behalf_of(&caller.key_id);
        for (id, object) in ids.iter().zip(holders_of_sessions(response)) {
            // The sandbox may be gone or stopped by now; the response is still that of the first request, without a way in.
            let session = agent.session(id).await.ok().map(sandboxes::body::SessionBody::from);
            object.insert("session".to_owned(), serde_json::to_value(session).unwrap_or_default());
        }
    })
}

/// Where sessions stand in a response: in each of its `sandboxes`, or else in itself.
fn holders_of_sessions(response: &mut Value) -> Vec<&mut Map<String, Value>> {
    let holders = if response.get("sandboxes").is_some_and(Value::is_array) {
        response["sandboxes"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default()
    } else {
        std::slice::from_mut(response)
    };
    holders.iter_mut().filter_map(Value::as_object_mut).collect()
}
