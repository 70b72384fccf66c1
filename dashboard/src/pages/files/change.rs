//! What is done with files: sent, made, renamed, deleted.

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode};
use axum::response::Redirect;
use sandpiper_client::DataPlane;
use serde::de::IgnoredAny;
use serde_json::json;

use super::{At, Place, last};
use crate::api::Problem;
use crate::data_planes::{DataPlanes, Opened, refused};
use crate::pages::no_action;
use crate::response::Refusal;
use crate::visit::{Order, Upload, with_query};

/// Longest name of a file, in bytes: Linux's.
const MAX_NAME: usize = 255;

/// `POST …/files?path=`: puts files into a folder, in place of those that have their names.
pub(crate) async fn upload(
    place: Place,
    Query(at): Query<At>,
    State(data_planes): State<DataPlanes>,
    Upload { order, mut files }: Upload,
) -> Result<Redirect, Refusal> {
    let folder = path_of(at)?;
    let inside = Inside::open(&place, &order, &data_planes).await?;
    // Nobody but a member of the team takes its places.
    order.call::<IgnoredAny>(Method::GET, "/v1/me").await?;
    let busy =
        || Problem::new(StatusCode::TOO_MANY_REQUESTS, "Your team sends too many files at a time; wait for one to end");
    let _share = data_planes.uploads.place(&order.team).ok_or_else(busy)?;
    let mut is_any = false;
    while let Some(file) = files.next().await? {
        let path = join(&folder, &file.name)?;
        match &inside {
            Inside::Sandbox(data_plane) => {
                data_plane.upload(&path, None, file.content(), None).await.map_err(refused)?;
            }
            Inside::Volume(api) => {
                let path = with_query(&format!("{api}/files"), &[("path", Some(&path))]);
                order.store(Method::PUT, &path, Body::from_stream(file.content())).await?;
            }
        }
        is_any = true;
    }
    if !is_any {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "No file was chosen; choose one, and send it then").into());
    }
    Ok(order.then(&with_query(&place.page(), &[("path", Some(&folder))])))
}

/// `POST …/files/do?path=`: what the field `action` names, with what is at the path.
pub(crate) async fn act(
    place: Place,
    Query(at): Query<At>,
    State(data_planes): State<DataPlanes>,
    order: Order,
) -> Result<Redirect, Refusal> {
    let path = path_of(at)?;
    let (folder, name) = (above(&path), order.fields.exact("name"));
    let (change, then) = match order.fields.text("action").unwrap_or_default() {
        "folder" => (Change::MakeFolder(join(&path, name)?), path.as_str()),
        "rename" => (Change::Rename(join(folder, name)?), folder),
        "delete" => (Change::Delete, folder),
        other => return Err(no_action(other).into()),
    };
    match Inside::open(&place, &order, &data_planes).await? {
        Inside::Sandbox(data_plane) => in_sandbox(&data_plane, &path, change).await?,
        Inside::Volume(api) => in_volume(&order, &api, &path, change).await?,
    }
    Ok(order.then(&with_query(&place.page(), &[("path", Some(then))])))
}

/// What is to be done with what is at a path.
enum Change {
    /// In it.
    MakeFolder(String),
    /// To this path.
    Rename(String),
    Delete,
}

/// The way to what is to be changed, which members get.
enum Inside {
    Sandbox(DataPlane),
    /// By its path in the API.
    Volume(String),
}

impl Inside {
    async fn open(place: &Place, order: &Order, data_planes: &DataPlanes) -> Result<Self, Problem> {
        let api = place.api();
        Ok(match place {
            Place::Sandbox(_) => {
                let Opened { session } = order.call(Method::POST, &format!("{api}/session")).await?;
                Self::Sandbox(data_planes.of(&session))
            }
            Place::Volume(_) => Self::Volume(api),
        })
    }
}

async fn in_sandbox(data_plane: &DataPlane, path: &str, change: Change) -> Result<(), Problem> {
    match change {
        Change::MakeFolder(folder) => data_plane.make_dir(&folder, None).await.map(drop).map_err(refused)?,
        Change::Rename(to) => {
            // A data plane would replace it.
            match data_plane.stat(&to, None).await {
                Ok(_) => {
                    return Err(Problem::new(
                        StatusCode::CONFLICT,
                        format!("There is something at {to:?}; delete it first"),
                    ));
                }
                Err(error) if error.status() == Some(404) => {
                    data_plane.rename(path, &to, None).await.map(drop).map_err(refused)?;
                }
                Err(error) => return Err(refused(error)),
            }
        }
        Change::Delete => data_plane.remove(path, None).await.map_err(refused)?,
    }
    Ok(())
}

async fn in_volume(order: &Order, api: &str, path: &str, change: Change) -> Result<(), Problem> {
    let at = |resource: &str, path: &str| with_query(&format!("{api}/{resource}"), &[("path", Some(path))]);
    let (method, path, body) = match change {
        Change::MakeFolder(folder) => (Method::POST, at("directories", &folder), None),
        Change::Rename(to) => (Method::PATCH, at("path", path), Some(json!({"move_to": to}))),
        Change::Delete => (Method::DELETE, at("path", path), None),
    };
    order.send::<IgnoredAny>(method, &path, body).await.map(drop)
}

fn path_of(at: At) -> Result<String, Problem> {
    let missing = || Problem::new(StatusCode::BAD_REQUEST, "The page does not say which path is meant; open it again");
    at.path.filter(|path| path.starts_with('/')).ok_or_else(missing)
}

/// The path of this name in a folder.
fn join(folder: &str, name: &str) -> Result<String, Problem> {
    let is_name =
        !name.is_empty() && name.len() <= MAX_NAME && name != "." && name != ".." && !name.contains(['/', '\0']);
    if !is_name {
        let message =
            format!("A name has 1 to {MAX_NAME} bytes, no slash, and is neither `.` nor `..`; this is {name:?}");
        return Err(Problem::new(StatusCode::BAD_REQUEST, message));
    }
    Ok(format!("{}/{name}", folder.trim_end_matches('/')))
}

/// The folder that something is in.
fn above(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    match path.strip_suffix(last(path)).map(|folder| folder.trim_end_matches('/')) {
        Some("") | None => "/",
        Some(folder) => folder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(join("/", "a").unwrap(), "/a");
        assert_eq!(join("/home/user", " a\nb ").unwrap(), "/home/user/ a\nb ");
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", &"x".repeat(256)] {
            assert!(join("/home", name).is_err(), "{name:?}");
        }
        assert_eq!(["/", "/a", "/a/b", "/a/b/"].map(above), ["/", "/", "/a", "/a"]);
    }
}
