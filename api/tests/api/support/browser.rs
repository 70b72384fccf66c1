//! A real browser.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http::header::HOST;
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandpiper_skip::skipped;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::eventually;

/// Where pictures are kept.
const PICTURES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/dashboard");

/// A browser without a window, by WebDriver (w3.org/TR/webdriver2). It ends with this.
pub(crate) struct Browser {
    driver: Child,
    /// The browser's own process, which outlives a driver that is killed.
    process: Option<Pid>,
    address: SocketAddr,
    /// The beginning of all its paths.
    session: String,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Either may have ended, which is as good.
        if let Some(process) = self.process {
            let _ = kill(process, Signal::SIGKILL);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// `None`, said aloud, where there is none: `what` was not looked at then.
    pub(crate) async fn open(what: &str) -> Option<Self> {
        // It cannot say which port it got, so one is chosen that was free a moment ago.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", address.port())).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(driver) = command.spawn() else {
            skipped(&format!("{what} in a browser"), "install Debian's chromium and chromium-driver");
            return None;
        };
        eventually("the driver listens", async || TcpStream::connect(address).await.is_ok()).await;
        let mut browser = Self { driver, process: None, address, session: String::new() };
        // Chromium's own sandbox does not run as root.
        let options = json!({"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]});
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        let opened = browser.ask("POST", "/session", wanted).await.expect("a browser");
        browser.session = format!("/session/{}", opened["sessionId"].as_str().unwrap());
        let process = opened["capabilities"]["goog:processID"].as_i64().expect("the browser's process");
        browser.process = Some(Pid::from_raw(process.try_into().unwrap()));
        Some(browser)
    }

    /// The value of an answer, or of an error.
    async fn ask(&self, method: &str, path: &str, body: Value) -> Result<Value, Value> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(format!("{}{path}", self.session));
        let request = request.header(HOST, self.address.to_string()).body(body.to_string()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let value = serde_json::from_slice::<Value>(&body).unwrap()["value"].take();
        if status.is_success() { Ok(value) } else { Err(value) }
    }

    pub(crate) async fn open_page(&self, url: &str) {
        self.ask("POST", "/url", json!({"url": url})).await.unwrap();
    }

    /// The path of an element.
    pub(crate) async fn find(&self, selector: &str) -> String {
        self.look_for(selector).await.unwrap_or_else(|| panic!("there is no {selector}"))
    }

    async fn look_for(&self, selector: &str) -> Option<String> {
        let wanted = json!({"using": "css selector", "value": selector});
        let found = self.ask("POST", "/element", wanted).await.ok()?;
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        Some(format!("/element/{}", id.as_str().unwrap()))
    }

    pub(crate) async fn click(&self, selector: &str) {
        let element = self.find(selector).await;
        self.ask("POST", &format!("{element}/click"), json!({})).await.unwrap();
    }

    /// Types `text` where the keyboard is.
    pub(crate) async fn press(&self, selector: &str, text: &str) {
        let element = self.find(selector).await;
        self.ask("POST", &format!("{element}/value"), json!({"text": text})).await.unwrap();
    }

    /// Types `text` into an empty field.
    pub(crate) async fn write(&self, selector: &str, text: &str) {
        let element = self.find(selector).await;
        self.ask("POST", &format!("{element}/clear"), json!({})).await.unwrap();
        self.ask("POST", &format!("{element}/value"), json!({"text": text})).await.unwrap();
    }

    /// Waits until the page says this in that place.
    pub(crate) async fn says(&self, selector: &str, text: &str) {
        // The place itself may be another one by now, on a page that changes.
        let says = async || {
            let Some(place) = self.look_for(selector).await else { return false };
            let shown = self.ask("GET", &format!("{place}/text"), json!({})).await;
            shown.is_ok_and(|shown| shown.as_str().is_some_and(|shown| shown.contains(text)))
        };
        eventually(&format!("{text:?} in {selector}"), says).await;
    }

    /// What a script gives, as the body of a function.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", json!({"script": script, "args": []})).await.unwrap()
    }

    /// The size of the page, in its own pixels.
    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// What the page is told that its reader likes: `light` or `dark`.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.command("Emulation.setEmulatedMedia", features).await;
    }

    /// A command of Chromium's own.
    async fn command(&self, name: &str, parameters: Value) {
        let body = json!({"cmd": name, "params": parameters});
        self.ask("POST", "/goog/cdp/execute", body).await.unwrap();
    }

    /// Keeps what is seen as a picture.
    pub(crate) async fn picture_to(&self, name: &str) {
        let text = self.ask("GET", "/screenshot", json!({})).await.unwrap();
        let picture = STANDARD.decode(text.as_str().unwrap()).unwrap();
        tokio::fs::create_dir_all(PICTURES).await.unwrap();
        tokio::fs::write(Path::new(PICTURES).join(format!("{name}.png")), picture).await.unwrap();
    }
}
