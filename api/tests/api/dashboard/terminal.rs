//! The terminal: a real data plane with real shells, as an ordinary process serves it; in a guest it is the same.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use sandpiper_accounts::Role;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::browser::{serve, sign_in};
use crate::support::browser::Browser;
use crate::support::data_plane::data_plane;
use crate::support::{BOUND, Host};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a sandbox's terminal as the page at this origin would.
async fn open(url: &str, origin: &str, token: &str, id: &str, query: &str) -> Result<Socket, Error> {
    let url = format!("{}/dashboard/acme/sandboxes/{id}/terminal/socket?{query}", url.replace("http", "ws"));
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("origin", origin.parse().unwrap());
    request.headers_mut().insert("cookie", format!("__Host-sandpiper={token}").parse().unwrap());
    Ok(connect_async(request).await?.0)
}

/// The status of a refused WebSocket.
fn status(refused: Result<Socket, Error>) -> u16 {
    match refused {
        Err(Error::Http(response)) => response.status().as_u16(),
        other => panic!("{other:?}"),
    }
}

/// The next text message.
async fn told(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = next(socket).await {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// Reads what is shown until this is in it.
async fn shown(socket: &mut Socket, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        if let Message::Binary(bytes) = next(socket).await {
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    text
}

async fn next(socket: &mut Socket) -> Message {
    tokio::time::timeout(BOUND, socket.next()).await.expect("a message in time").expect("a message").unwrap()
}

async fn enter(socket: &mut Socket, line: &str) {
    socket.send(Message::binary(format!("{line}\n").into_bytes())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_is_typed_to_resized_left_and_found_again() {
    let Some((data_plane, _folder)) = data_plane("a terminal of the dashboard").await else { return };
    let host = Host::new().await;
    host.agent.records().data_plane = Some(data_plane);
    let (url, _server) = serve(&host).await;
    let user = host.user("ada@example.com", "acme", Role::Member).await;
    let id = host.sandbox().await;
    let mut socket = open(&url, &url, &user.token, &id, "cols=90&rows=20").await.unwrap();
    let pid = told(&mut socket).await["pid"].as_u64().unwrap();
    enter(&mut socket, "stty size; echo $((6*7))-there").await;
    assert!(shown(&mut socket, "42-there").await.contains("20 90"));
    socket.send(Message::text(json!({"cols": 33, "rows": 11}).to_string())).await.unwrap();
    enter(&mut socket, "sleep 0.2; stty size; echo $((7*7))-resized").await;
    assert!(shown(&mut socket, "49-resized").await.contains("11 33"));

    // The page goes, the shell stays: what it says meanwhile is there for the next.
    enter(&mut socket, "sleep 0.3; echo $((8*8))-meanwhile").await;
    drop(socket);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut socket = open(&url, &url, &user.token, &id, &format!("pid={pid}")).await.unwrap();
    assert_eq!(told(&mut socket).await["pid"], pid);
    assert!(shown(&mut socket, "64-meanwhile").await.contains("42-there"));
    enter(&mut socket, "exit 3").await;
    assert_eq!(told(&mut socket).await, json!({"ended": "exit status 3"}));

    let mut gone = open(&url, &url, &user.token, &id, "pid=4000000").await.unwrap();
    assert!(told(&mut gone).await["error"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_for_members_and_pages_of_this_host() {
    let host = Host::new().await;
    let (url, _server) = serve(&host).await;
    let member = host.user("ada@example.com", "acme", Role::Member).await;
    let viewer = host.user("vi@example.com", "acme", Role::Viewer).await;
    let stranger = host.user("eve@example.com", "rival", Role::Owner).await;
    let id = host.sandbox().await;
    assert_eq!(status(open(&url, &url, &viewer.token, &id, "").await), 403);
    assert_eq!(status(open(&url, &url, &stranger.token, &id, "").await), 404);
    assert_eq!(status(open(&url, "http://evil.example", &member.token, &id, "").await), 403);
    assert_eq!(status(open(&url, &url, "", &id, "").await), 303);
    assert_eq!(status(open(&url, &url, &member.token, &id, "cols=many").await), 400);
    // The sandbox's data plane is not there: said in the terminal, not as a page.
    let mut socket = open(&url, &url, &member.token, &id, "").await.unwrap();
    assert!(told(&mut socket).await["error"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_types_a_command_and_reads_its_output() {
    let Some((data_plane, _folder)) = data_plane("a terminal of the dashboard").await else { return };
    let Some(browser) = Browser::open("the terminal").await else { return };
    let host = Host::new().await;
    host.agent.records().data_plane = Some(data_plane);
    let (url, _server) = serve(&host).await;
    host.user("ada@example.com", "acme", Role::Member).await;
    let id = host.sandbox().await;
    sign_in(&browser, &url, "ada@example.com").await;
    browser.open_page(&format!("{url}/dashboard/acme/sandboxes/{id}/terminal")).await;
    browser.says("#terminal-state", "connected").await;
    browser.press(".xterm-helper-textarea", "echo $((6*7))-there\u{e007}").await;
    browser.says("#terminal .xterm-rows", "42-there").await;
    // The styles that it makes work under the page's policy.
    let height = browser.run("return document.querySelector('.xterm-rows > div').getBoundingClientRect().height").await;
    assert!(height.as_f64().unwrap() > 5.0, "{height}");
    browser.picture_to("terminal").await;
    browser.press(".xterm-helper-textarea", "exit\u{e007}").await;
    browser.says("#terminal-state", "exit status 0").await;
    browser.click("#terminal-again").await;
    browser.says("#terminal-state", "connected").await;
}
