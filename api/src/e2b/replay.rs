//! Responses to repeated requests: which parts of them are credentials, and what was made before.

use axum::Extension;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use serde_json::{Map, Value};

use super::snapshots::SnapshotInfo;
use super::{build_files, create, fork, volume_content, volume_token, volumes};
use crate::auth::Caller;
use crate::mutation::{BodyRule, Face, Work};
use crate::state::App;
use crate::v1::checkpoints;

/// Of all requests here.
pub const FACE: Face = Face { body: body_rule, existing, hide, renew };

fn body_rule(parts: &Parts) -> BodyRule {
    if build_files::is_upload(parts) { BodyRule::Stream } else { volume_content::body_rule(parts) }
}

const ACCESS: &str = "envdAccessToken";
const TRAFFIC: &str = "trafficAccessToken";
/// Of a volume.
const TOKEN: &str = "token";

fn existing<'a>(
    app: &'a App,
    caller: &'a Caller,
    resource: Option<&'a str>,
    made: &'a str,
) -> Work<'a, Result<Option<Response>, ApiError>> {
    Box::pin(async move {
        let ids: Vec<&str> = made.split(',').collect();
        match (resource, ids.as_slice()) {
            (None, [id]) if id.starts_with("vol") => volumes::response_for_existing(app, caller, &(*id).into()).await,
            (None, [id]) => create::response_for_existing(app, caller, id).await,
            (Some(sandbox), [id]) if id.starts_with("ckp") => {
                let Some(row) = checkpoints::made_before(app, caller, &(*id).into()).await? else { return Ok(None) };
                let acted = Extension(Acted(vec![sandbox.to_owned(), row.id.clone()]));
                Ok(Some((StatusCode::CREATED, acted, axum::Json(SnapshotInfo::from(row))).into_response()))
            }
            (Some(source), ids) => fork::response_for_existing(app, caller, source, ids).await,
            (None, _) => Ok(None),
        }
    })
}

/// What was there stays there, without what it said.
fn hide(response: &mut Value) {
    for object in holders(response) {
        for name in [ACCESS, TRAFFIC, TOKEN] {
            if let Some(token) = object.get_mut(name) {
                *token = Value::Null;
            }
        }
    }
}

fn renew<'a>(app: &'a App, caller: &'a Caller, ids: &'a [&'a str], response: &'a mut Value) -> Work<'a, ()> {
    Box::pin(async move {
        for (id, object) in ids.iter().zip(holders(response)) {
            if id.starts_with("vol") {
                object.insert(TOKEN.to_owned(), volume_token::mint(app, caller, id).ok().into());
                continue;
            }
            // The sandbox may be gone by now; the response is still that of the first request, without a way in.
            let tokens = app.agent.tokens(id).await.ok();
            let (access, traffic) = tokens.map(|tokens| (tokens.access_token, tokens.traffic_token)).unzip();
            for (name, token) in [(ACCESS, access), (TRAFFIC, traffic)] {
                if object.contains_key(name) {
                    object.insert(name.to_owned(), token.into());
                }
            }
        }
    })
}

/// Where tokens stand in a response: in the `sandbox` of each of its elements, or else in itself.
fn holders(response: &mut Value) -> Vec<&mut Map<String, Value>> {
    match response {
        Value::Array(forks) => forks.iter_mut().filter_map(|fork| fork.get_mut("sandbox")?.as_object_mut()).collect(),
        other => other.as_object_mut().into_iter().collect(),
    }
}
