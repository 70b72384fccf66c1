//! A real data plane with this machine's files and processes, as an ordinary process serves it; in a guest it is the same.

use std::sync::Arc;

use axum::routing::{get, post};
use axum::{Json, Router};
use sandpiper_init::serve::{App, Settings, serve as serve_data_plane};
use sandpiper_protocol::filesystem::SERVICE;
use sandpiper_skip::skipped;
use serde_json::json;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// A data plane on a TCP port, as the ingress would forward to it; it lasts as long as the folder. `None`, said aloud, where it
/// cannot be: `what` was not tried then.
pub(crate) async fn data_plane(what: &str) -> Option<(String, tempfile::TempDir)> {
    // Processes are run as the user that is asked for.
    if !nix::unistd::geteuid().is_root() {
        skipped(what, "processes of a data plane need root");
        return None;
    }
    sandpiper_init::reap::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("data-plane");
    let unix = UnixListener::bind(&socket).unwrap();
    // Login shells read nothing of this machine's root.
    let envs = [("HOME".to_owned(), folder.path().display().to_string())].into();
    let settings = Settings { envs, default_user: "root".to_owned(), ..Settings::default() };
    tokio::spawn(serve_data_plane(unix, Arc::new(App::new(settings))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut inner = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut inner).await });
        }
    });
    Some((url, folder))
}

/// A stand-in for a data plane on a TCP port: an empty file at every path, which is an empty folder, too.
pub(crate) async fn empty_data_plane() -> String {
    let entry =
        json!({"entry": {"name": "f", "path": "/f", "type": "FILE_TYPE_FILE", "modifiedTime": "1970-01-01T00:00:00Z"}});
    let router = Router::new()
        .route("/files", get(""))
        .route(&format!("/{SERVICE}/Stat"), post(Json(entry)))
        .route(&format!("/{SERVICE}/ListDir"), post(Json(json!({}))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}
