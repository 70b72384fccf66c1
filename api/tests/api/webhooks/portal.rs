//! The Merchant Portal's page in a real browser, in front of the real process: what a person saves there is saved.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use http::Request;
use http::header::HOST;
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandpiper_db::testing::TestDatabase;
use sandpiper_skip::skipped;
use sandpiper_webhook::SigningKey;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::receiver::Receiver;
use super::server::{Server, operator_key, write_config};
use crate::support::{Host, eventually};

/// A browser without a window, by WebDriver (w3.org/TR/webdriver2). It ends with this.
struct Browser {
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
    /// `None`, said aloud, where there is none.
    async fn open() -> Option<Self> {
        // It cannot say which port it got, so one is chosen that was free a moment ago.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", address.port())).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(driver) = command.spawn() else {
            skipped("the Merchant Portal in a browser", "install Debian's chromium and chromium-driver");
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

    async fn open_page(&self, url: &str) {
        self.ask("POST", "/url", json!({"url": url})).await.unwrap();
    }

    /// The path of an element.
    async fn find(&self, selector: &str) -> String {
        let wanted = json!({"using": "css selector", "value": selector});
        let found = self.ask("POST", "/element", wanted).await.unwrap();
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        format!("/element/{}", id.as_str().unwrap())
    }

    async fn click(&self, selector: &str) {
        let element = self.find(selector).await;
        self.ask("POST", &format!("{element}/click"), json!({})).await.unwrap();
    }

    /// Types `text` into an empty field.
    async fn write(&self, selector: &str, text: &str) {
        let element = self.find(selector).await;
        self.ask("POST", &format!("{element}/clear"), json!({})).await.unwrap();
        self.ask("POST", &format!("{element}/value"), json!({"text": text})).await.unwrap();
    }

    /// Waits until the page says this in that place.
    async fn says(&self, selector: &str, text: &str) {
        let place = format!("{}/text", self.find(selector).await);
        let says = async || {
            let shown = self.ask("GET", &place, json!({})).await.unwrap();
            shown.as_str().is_some_and(|shown| shown.contains(text))
        };
        eventually(&format!("{text:?} in {selector}"), says).await;
    }

    async fn agree(&self) {
        self.ask("POST", "/alert/accept", json!({})).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_but_the_portals_own_files_is_carried_out_in_it() {
    let host = Host::new().await;
    for (path, content_type) in
        [("/portal", "text/html"), ("/portal.css", "text/css"), ("/portal.js", "text/javascript")]
    {
        let file = host.get(path).await;
        assert_eq!(file.status.as_u16(), 200, "{path}");
        assert!(file.header("content-type").unwrap().starts_with(content_type), "{path}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.contains("script-src 'self'; style-src 'self'") && !policy.contains("unsafe"), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merchant_says_in_the_portal_where_webhooks_go() {
    let Some(browser) = Browser::open().await else { return };
    let receiver = Receiver::answering(200).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let server = Server::start(&config, "info").await;
    let old = format!("https://{}/old", receiver.address);
    let (_, secret) = server.merchant(&operator_key(&config), "a merchant", &old).await;
    let portal = format!("http://{}/portal", server.address);
    browser.open_page(&portal).await;

    // The other realm's key is not mistaken for this one's.
    browser.write("#key", &secret).await;
    browser.click("input[value=sandbox]").await;
    browser.click("#open button").await;
    browser.says("#message", "use the secret key of the realm sandbox").await;

    browser.click("input[value=live]").await;
    browser.click("#open button").await;
    browser.says("#saved", &old).await;
    browser.says("#realm", "Live").await;

    browser.write("#url", "https://10.0.0.1/inside").await;
    browser.click("#config button").await;
    browser.says("#message", "refused").await;
    browser.says("#saved", &old).await;

    let new = format!("https://{}/new", receiver.address);
    browser.write("#url", &new).await;
    browser.click("#config button").await;
    browser.says("#saved", &new).await;
    browser.click("#test").await;
    browser.says("#message", "On its way").await;
    eventually("the test webhook", async || receiver.count() == 1).await;
    let received = &receiver.received()[0];
    browser.says("#message", &received.key()).await;
    assert!(received.head.starts_with("POST /new "), "{}", received.head);
    let (headers, now) = (received.headers("x-webhook-signature"), jiff::Timestamp::now().as_second());
    let key = SigningKey::from_api_key(&secret).unwrap();
    assert_eq!(sandpiper_webhook::verify(&key, headers, &received.body, now, 600), Ok(()));

    browser.click("#stop").await;
    browser.agree().await;
    browser.says("#saved", "no webhooks are sent").await;
    // Without a URL there is nothing to test, also where that is what a page finds.
    browser.open_page(&portal).await;
    browser.write("#key", &secret).await;
    browser.click("input[value=live]").await;
    browser.click("#open button").await;
    browser.says("#saved", "no webhooks are sent").await;
    browser.find("#test:disabled").await;
    browser.find("#stop:disabled").await;
}
