//! Sockets: accepting connections, bounding them, and ending them well.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 4096;
/// From a connection's first byte, or the end of the request before, to the end of the next request's head. Ends idle
/// connections too.
const HEAD: Duration = Duration::from_secs(60);
/// How long requests may go on after the signal to stop.
const DRAIN: Duration = Duration::from_secs(30);
/// After an accept that failed, which for lack of descriptors it would do in a busy loop.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves `router` until `stop`, then lets the requests under way finish.
pub async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    tokio::pin!(stop);
    loop {
        let permit = tokio::select! {
            permit = permits.clone().acquire_owned() => permit,
            () = &mut stop => break,
        };
        // The semaphore is never closed.
        let Ok(permit) = permit else { break };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        // Answers are written whole: waiting for more to send only delays them. A failure costs nothing else.
        let _ = stream.set_nodelay(true);
        let service = router.clone().map_request(|request: Request<Incoming>| request.map(Body::new));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(assert_infallible(service)));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were still open at the end");
    }
}

/// Names the error type: a router answers everything.
fn assert_infallible<S: tower::Service<Request<Incoming>, Error = Infallible>>(service: S) -> S {
    service
}
