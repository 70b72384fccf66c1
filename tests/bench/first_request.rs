//! A template whose start command is a web server: create called -> the server has answered a request at the sandbox's preview.
//! Beside it the same start up to its response, of which that should be nearly all.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sandpiper::client::{CreateSandbox, ExposedPort, NewVersion, Source};
use sandpiper_protocol::agent::StartKind;
use support::{Host, version_of};

use crate::report::{Report, elapsed};
use crate::starts;

const NAME: &str = "bench-server";
const PORT: u16 = 8000;
const ANSWER: Duration = Duration::from_secs(30);
const SERVER: &str = "exec python3 -m http.server 8000 --bind 127.0.0.1";
const IS_UP: &str = "python3 -c 'import urllib.request as r; r.urlopen(\"http://127.0.0.1:8000/\")'";

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let template = host.template(NAME).await;
    let made_of = host.sandbox().await;
    let checkpoint = made_of.checkpoint(false).await?;
    let new = version_of(Source::Checkpoint(checkpoint.id.clone()));
    template.build(&NewVersion { start_cmd: Some(SERVER.into()), ready_cmd: Some(IS_UP.into()), ..new }).await;
    made_of.delete().await;

    let request = CreateSandbox { exposed_ports: vec![ExposedPort::public(PORT)], ..template.sandbox() };
    let http = host.client.http();
    let (mut created, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let begin = Instant::now();
        let sandbox = host.try_sandbox(&request).await?;
        created.push(elapsed(begin));
        let url = host.client.port(&sandbox.id, PORT).await?.url;
        let answer = http.get(&url).timeout(ANSWER).send().await.context("the preview does not answer")?;
        answered.push(elapsed(begin));
        ensure!(answer.status().is_success(), "{url} answered {}", answer.status());
        starts::check(&sandbox, StartKind::Warm).await?;
        sandbox.delete().await;
    }
    report.add("first-request", "warm_create", "ms", &created);
    report.add("first-request", "warm_create_to_first_request", "ms", &answered);
    template.delete().await;
    Ok(())
}
