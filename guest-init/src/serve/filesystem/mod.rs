//! The service `filesystem.Filesystem`: folders, and what is known of files.
//!
//! | method | what |
//! |---|---|
//! | `Stat` | what there is at a path |
//! | `ListDir` | what is in a folder, down to a depth |
//! | `MakeDir` | makes a folder, and those above it |
//! | `Move` | renames, and makes the folders above the new name |
//! | `Remove` | removes a file or a whole tree; nothing there is no error |
//! | `WatchDir` | responds with a stream of what changes in a folder ([`watch`]) |
//! | `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher` | the same for who asks now and then |
//!
//! A path is taken as [`super::files`] takes it. The kernel checks every access as the requested user's
//! ([`as_user`]), and no magic link of `/proc` is followed: these lead past the permissions of folders.

mod change;
mod entry;
mod list;
mod remove;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use sandpiper_durable::blocking;
use sandpiper_protocol::connect::Code;
use sandpiper_protocol::filesystem::{
    EntryResponse, GetWatcherEventsResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest, WatchRequest,
    Watcher,
};
use sandpiper_protocol::process::Empty;
use serde::Serialize;
use tokio::time::Instant;

pub(super) use watch::Watches;

use super::App;
use super::connect::{self, Error, Wire, stream_message, unary_message};
use super::credentials::as_user;
use super::files::resolve;
use super::http::{Response, json};
use crate::users::{Names, User};

/// Calls a method of the service.
pub(super) async fn call(method: &str, request: Request<Incoming>, app: &Arc<App>) -> Response {
    let wire = match method {
        "WatchDir" => Wire::Stream,
        "Stat" | "ListDir" | "MakeDir" | "Move" | "Remove" => Wire::Unary,
        "CreateWatcher" | "GetWatcherEvents" | "RemoveWatcher" => Wire::Unary,
        _ => return connect::unimplemented(&request),
    };
    let time = match connect::admit(request.headers(), wire) {
        Ok(time) => time,
        Err(refusal) => return *refusal,
    };
    let call = async {
        match method {
            "Stat" => stat(request, app).await,
            "ListDir" => list_dir(request, app).await,
            "MakeDir" => make_dir(request, app).await,
            "Move" => move_entry(request, app).await,
            "Remove" => remove(request, app).await,
            "WatchDir" => watch_dir(request, app).await,
            "CreateWatcher" => create_watcher(request, app).await,
            "GetWatcherEvents" => get_watcher_events(request, app).await,
            _ => remove_watcher(request, app).await,
        }
    };
    connect::respond(wire, time, call).await
}

async fn stat(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let (caller, PathRequest { path }) = receive(request, app).await?;
    let entry = caller.work(path, entry::at).await?;
    Ok(response(&EntryResponse { entry }))
}

async fn list_dir(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let (caller, ListDirRequest { path, depth }) = receive(request, app).await?;
    let entries = caller.work(path, move |path, names| list::list(path, depth, names)).await?;
    Ok(response(&ListDirResponse { entries }))
}

async fn make_dir(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let (caller, PathRequest { path }) = receive(request, app).await?;
    let made = caller.work(path, |path, names| {
        change::make_folder(path)?;
        entry::at(path, names)
    });
    Ok(response(&EntryResponse { entry: made.await? }))
}

async fn move_entry(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let (caller, MoveRequest { source, destination }) = receive(request, app).await?;
    let user = caller.user.clone();
    let moved = caller.work(source, move |source, names| {
        let destination = resolve(&destination, &user);
        change::rename(source, &destination)?;
        entry::at(&destination, names)
    });
    Ok(response(&EntryResponse { entry: moved.await? }))
}

async fn remove(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let (caller, PathRequest { path }) = receive(request, app).await?;
    caller.work(path, |path, _| remove::remove(path)).await?;
    Ok(response(&Empty {}))
}

async fn watch_dir(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let deadline = connect::deadline(request.headers()).and_then(|time| Instant::now().checked_add(time));
    let keepalive = connect::keepalive(request.headers());
    let caller = Caller::of(request.headers(), app).await?;
    let watch = start_watch(stream_message(request.into_body()).await?, caller, app).await?;
    Ok(connect::stream(watch::envelopes(watch, keepalive, deadline)))
}

async fn create_watcher(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let (caller, message) = receive(request, app).await?;
    Ok(response(&app.watches.keep(start_watch(message, caller, app).await?)?))
}

async fn get_watcher_events(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let watcher: Watcher = unary_message(request.into_body()).await?;
    Ok(response(&GetWatcherEventsResponse { events: app.watches.take(&watcher)? }))
}

async fn remove_watcher(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let watcher: Watcher = unary_message(request.into_body()).await?;
    app.watches.remove(&watcher)?;
    Ok(response(&Empty {}))
}

async fn start_watch(request: WatchRequest, caller: Caller, app: &App) -> Result<watch::Watch, Error> {
    let path = resolve(&request.path, &caller.user);
    app.watches.start(request, path, caller.user).await
}

/// Whom a call acts as.
struct Caller {
    user: User,
}

impl Caller {
    async fn of(headers: &HeaderMap, app: &App) -> Result<Self, Error> {
        let (name, settings) = (app.caller(headers), app.settings());
        let user = blocking(move || Ok::<_, Error>(settings.user(&name)?)).await?;
        Ok(Self { user })
    }

    /// Does work on a path as the user, where it may wait for a disk.
    async fn work<T: Send + 'static>(
        self,
        path: String,
        work: impl FnOnce(&Path, &Names) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        blocking(move || {
            let names = Names::read()?;
            let path = resolve(&path, &self.user);
            as_user(&self.user, || work(&path, &names)).map_err(failed(&path))?
        })
        .await
    }
}

/// The caller and the message of a unary call.
async fn receive<T: serde::de::DeserializeOwned>(
    request: Request<Incoming>,
    app: &Arc<App>,
) -> Result<(Caller, T), Error> {
    let caller = Caller::of(request.headers(), app).await?;
    Ok((caller, unary_message(request.into_body()).await?))
}

fn response(message: &impl Serialize) -> Response {
    json(StatusCode::OK, message)
}

/// What is said of a failed access to `path`.
fn failed<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> Error + use<E> {
    let path: PathBuf = path.to_owned();
    move |error| {
        let error: io::Error = error.into();
        Error::new(code_of(&error), format!("{}: {error}", path.display()))
    }
}

fn code_of(error: &io::Error) -> Code {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => Code::NotFound,
        Kind::AlreadyExists => Code::AlreadyExists,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Code::PermissionDenied,
        Kind::StorageFull | Kind::QuotaExceeded => Code::ResourceExhausted,
        Kind::NotADirectory | Kind::IsADirectory | Kind::InvalidInput | Kind::InvalidFilename => Code::InvalidArgument,
        Kind::DirectoryNotEmpty | Kind::CrossesDevices | Kind::ResourceBusy => Code::FailedPrecondition,
        // A loop of symbolic links, or a magic one, has no stable kind.
        _ if error.raw_os_error() == Some(libc::ELOOP) => Code::InvalidArgument,
        _ => Code::Internal,
    }
}
