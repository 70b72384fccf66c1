//! The data plane: what a sandbox is used through.
//!
//! | request | response |
//! |---|---|
//! | `GET /health` | 204 |
//! | `GET /metrics` | [`metrics`] |
//! | `GET /envs` | the environment of every process, by name |
//! | `GET /files`, `POST /files`, `POST /files/compose` | [`files`] |
//! | `POST /process.Process/<Method>` | [`process`], in the Connect protocol |
//! | `POST /filesystem.Filesystem/<Method>` | [`filesystem`], in the same |
//! | `/volume/…` | [`volume`], in a guest that is there for one; 404 in others |
//! | `POST /<other service>/<Method>` | Connect error `unimplemented` |
//! | anything else | 404 |
//!
//! The protocol is the one that the E2B SDKs speak to the daemon in their machines, so they work unmodified. Who may
//! connect is decided before: on vsock only the host may, and its proxy has checked the caller's token. Inside, the user
//! that a request names (Basic authorization with an empty password, or `username`) is whom it acts as, not a credential.

mod connect;
mod credentials;
mod files;
mod filesystem;
#[cfg(fuzzing)]
pub mod fuzzing;
mod http;
mod metrics;
mod open;
mod pour;
mod process;
mod query;
mod volume;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::capture::Capture;
use crate::cgroups::Cgroups;
use crate::gate::Gate;
pub use crate::net::Listener;
use crate::net::accept_each;
use crate::users::{self, LookupError, User};
use http::{Response, basic_user, error, json, status};
pub use process::StartCommand;

/// Connections at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;

/// For a request's head to arrive, counted from the end of the request before: also how long an idle connection is kept.
/// Longer than any proxy keeps one, so that it is never closed under a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(660);

/// Bytes of a request's head, and of what is buffered of a body.
const READ_BUFFER: usize = 256 * 1024;

/// What the host decides for all requests.
#[derive(Clone, Default)]
pub struct Settings {
    /// Environment of every process.
    pub envs: BTreeMap<String, String>,
    /// User of requests that name none.
    pub default_user: String,
    /// Where processes start and relative paths count from where nothing else is said; the user's home without it.
    pub folder: Option<String>,
    /// Root of the volume that this guest is there for.
    pub volume: Option<PathBuf>,
}

impl Settings {
    /// The user called `name`, as requests mean it. Reads files.
    fn user(&self, name: &str) -> Result<User, LookupError> {
        Ok(users::lookup(name)?.starting_in(self.folder.as_deref()))
    }
}

/// The values of the environment may be secrets.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("default_user", &self.default_user).finish_non_exhaustive()
    }
}

/// The state that requests share.
#[derive(Debug)]
pub struct App {
    settings: Mutex<Settings>,
    gate: Gate,
    processes: Arc<process::Manager>,
    capture: Capture,
    watches: filesystem::Watches,
    processors: metrics::Processors,
}

impl App {
    pub fn new(settings: Settings) -> Self {
        Self::with_groups(settings, None)
    }

    /// One whose processes are put into a control group.
    pub(crate) fn with_groups(settings: Settings, groups: Option<Cgroups>) -> Self {
        let capture = Capture::default();
        Self {
            settings: Mutex::new(settings),
            gate: Gate::default(),
            processes: Arc::new(process::Manager::new(groups, capture.clone())),
            capture,
            watches: filesystem::Watches::default(),
            processors: metrics::Processors::default(),
        }
    }

    /// Replaces the settings, for requests from now on.
    pub fn configure(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// What requests have to pass.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// What processes write, for the sandbox's log.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// The name of the user that a call acts as.
    fn caller(&self, headers: &HeaderMap) -> String {
        basic_user(headers).unwrap_or_else(|| self.settings().default_user)
    }

    fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves connections without end. To be run on a runtime where [`crate::reap::start`] was called.
pub async fn serve<L: Listener>(listener: L, app: Arc<App>) {
    accept_each(listener, MAX_CONNECTIONS, |stream, permit| {
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let app = Arc::clone(&app);
                async move { Ok::<_, Infallible>(route(request, &app).await) }
            });
            // A connection that breaks is the peer's affair; what it started goes on.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(READ_BUFFER)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(permit);
        });
    })
    .await;
}

async fn route(request: Request<Incoming>, app: &Arc<App>) -> Response {
    app.gate.pass().await;
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => status(StatusCode::NO_CONTENT),
        (&Method::GET, "/metrics") => metrics::metrics(app).await,
        (&Method::GET, "/envs") => json(StatusCode::OK, &app.settings().envs),
        // To a HEAD, hyper sends the head only.
        (&Method::GET | &Method::HEAD, "/files") => files::download(request, app).await,
        (&Method::POST, "/files") => files::upload(request, app).await,
        (&Method::POST, "/files/compose") => files::compose(request, app).await,
        (_, "/health" | "/metrics" | "/envs" | "/files" | "/files/compose") => {
            error(StatusCode::METHOD_NOT_ALLOWED, "This path has no such method")
        }
        (_, path) if path.starts_with("/volume/") => match app.settings().volume {
            Some(root) => volume::call(request, root).await,
            None => error(StatusCode::NOT_FOUND, "There is nothing at this path"),
        },
        (_, path) => match connect::method_of(path) {
            Some(_) if request.method() != Method::POST => {
                error(StatusCode::METHOD_NOT_ALLOWED, "Procedures are called with POST")
            }
            Some((sandpiper_protocol::process::SERVICE, method)) => {
                let method = method.to_owned();
                process::call(&method, request, app).await
            }
            Some((sandpiper_protocol::filesystem::SERVICE, method)) => {
                let method = method.to_owned();
                filesystem::call(&method, request, app).await
            }
            Some(_) => connect::unimplemented(&request),
            None => error(StatusCode::NOT_FOUND, "There is nothing at this path"),
        },
    }
}
