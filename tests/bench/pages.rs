//! The pages of the dashboard, as a member of a team with 1,000 stopped sandboxes gets them. The process has no agent: what pages
//! would show of a host is left out.

use std::time::Instant;

use anyhow::{Context, ensure};
use reqwest::header::{CONTENT_TYPE, COOKIE};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

use crate::api::{Api, Database, text};
use crate::report::Report;
use crate::serving::sandboxes::put;

const TEAM: &str = "bench";
const SANDBOXES: usize = 1000;
/// Requests for a page in each run.
const REQUESTS: usize = 10;
/// Below `/dashboard`, of a member of the team `{team}`; `{sandbox}` is one of its sandboxes.
const PAGES: [(&str, &str); 19] = [
    ("sandboxes", "{team}/sandboxes"),
    ("sandboxes_filtered", "{team}/sandboxes?state=stopped&metadata=group%3D7"),
    ("sandbox", "{team}/sandboxes/{sandbox}"),
    ("network", "{team}/sandboxes/{sandbox}/network"),
    ("files", "{team}/sandboxes/{sandbox}/files"),
    ("terminal", "{team}/sandboxes/{sandbox}/terminal"),
    ("new", "{team}/new"),
    ("checkpoints", "{team}/checkpoints"),
    ("templates", "{team}/templates"),
    ("template", "{team}/templates/base"),
    ("volumes", "{team}/volumes"),
    ("keys", "{team}/keys"),
    ("webhooks", "{team}/webhooks"),
    ("limits", "{team}/limits"),
    ("usage", "{team}/usage"),
    ("members", "{team}/members"),
    ("audit", "{team}/audit"),
    ("account", "account"),
    ("join", "join"),
];

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(&Database::Sqlite, None).await?;
    let invitation = api.invitation(TEAM)?;
    let user = json!({"token": invitation, "email": "bench@example.com", "name": "Bench", "password": "a long enough password"});
    let sandboxes = put(&api, TEAM, SANDBOXES).await?;
    let sandbox = sandboxes.first().context("no sandbox")?;
    let client = Client::builder().no_proxy().build()?;
    let accept = client.post(format!("http://{}/v1/invitations/accept", api.address));
    let accepted = accept.header(CONTENT_TYPE, "application/json").body(user.to_string()).send().await?;
    let accepted: Value = serde_json::from_slice(&accepted.error_for_status()?.bytes().await?)?;
    let cookie = format!("__Host-sandpiper={}", text(&accepted["session"], "token")?);
    for (name, page) in PAGES {
        let page = page.replace("{team}", TEAM).replace("{sandbox}", sandbox);
        let url = format!("http://{}/dashboard/{page}", api.address);
        let (mut times, mut size) = (Vec::new(), 0);
        for _ in 0..runs * REQUESTS {
            let began = Instant::now();
            let response = client.get(&url).header(COOKIE, &cookie).send().await?;
            let status = response.status();
            size = response.bytes().await?.len();
            times.push(began.elapsed().as_secs_f64() * 1000.0);
            ensure!(status == StatusCode::OK, "{page} responds with {status}");
        }
        report.add("pages", name, "ms", &times);
        // A page has far fewer bytes than a float keeps apart.
        #[expect(clippy::cast_precision_loss)]
        report.add("pages", &format!("{name}_size"), "KiB", &[size as f64 / 1024.0]);
    }
    Ok(())
}
