//! A Dockerfile of five steps: with no step done before, and once more while that version is there; by a build of ours, from its
//! request to `ready`, and by plain buildah on this machine. And a warm start beside them, which the goal for a cached build is
//! counted in.

use std::time::Instant;

use anyhow::ensure;
use sandpiper::client::Source;
use sandpiper_protocol::agent::StartKind;
use sandpiper_protocol::template::{Dockerfile, Secrets};
use support::registry::{self, Registry};
use support::{Host, Template, small, version_of};

use crate::report::{Report, elapsed, ratio_of_medians};
use crate::starts;

const NAME: &str = "bench-build";
const IMAGE: &str = "localhost/bench-build:1";
const STEPS: &str = "\
    RUN mkdir -p /srv/app && cp -r /usr/lib/python3.11 /srv/app/lib\n\
    RUN head -c 20000000 /dev/urandom >/srv/app/data\n\
    COPY Dockerfile /srv/app/\n\
    RUN python3 -m compileall -q -f /srv/app/lib/json\n\
    RUN chown -R 1000:1000 /srv/app\n";

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let (host, registry) = (Host::shared(), Registry::with_base());
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("Dockerfile"), format!("FROM {}\n{STEPS}", registry::BASE))?;
    let context = upload(host, folder.path()).await?;
    let template = host.template(NAME).await;
    // The image is in the cache, as it is in buildah's.
    let (version, _) = build(&template, &context, true).await?;
    template.delete_version(&version).await?;
    registry.build_with(&["--layers"], folder.path(), IMAGE);
    host.wait_until_warm(&small()).await.delete().await;

    let (mut cold, mut cached, mut started) = (Vec::new(), Vec::new(), Vec::new());
    let (mut plain_cold, mut plain_cached) = (Vec::new(), Vec::new());
    for _ in 0..runs.div_ceil(4) {
        // The same once more, while the version of the first time is there.
        let (first, time) = build(&template, &context, true).await?;
        cold.push(time);
        let (second, time) = build(&template, &context, false).await?;
        cached.push(time);
        for version in [second, first] {
            template.delete_version(&version).await?;
        }
        for (times, options) in
            [(&mut plain_cold, &["--layers", "--no-cache"][..]), (&mut plain_cached, &["--layers"][..])]
        {
            let begin = Instant::now();
            registry.build_with(options, folder.path(), IMAGE);
            times.push(elapsed(begin));
        }
        let start = starts::timed(&small(), StartKind::Warm).await?;
        started.push(start.created);
        start.sandbox.delete().await;
    }

    report.add("template-build", "cold", "ms", &cold);
    report.add("template-build", "cached", "ms", &cached);
    report.add("template-build", "buildah_cold", "ms", &plain_cold);
    report.add("template-build", "buildah_cached", "ms", &plain_cached);
    report.add("template-build", "warm_create", "ms", &started);
    report.add("template-build", "cold_over_buildah", "x", &[ratio_of_medians(&cold, &plain_cold)?]);
    report.add("template-build", "cached_over_buildah", "x", &[ratio_of_medians(&cached, &plain_cached)?]);
    let goal: Vec<f64> = started.iter().map(|created| 2.0 * created + 1000.0).collect();
    report.add("template-build", "cached_over_goal", "x", &[ratio_of_medians(&cached, &goal)?]);
    registry.remove(IMAGE);
    template.delete().await;
    host.client.delete_upload(&context).await?;
    Ok(())
}

/// Sends the folder, which has only a Dockerfile; the id of what was sent.
async fn upload(host: &Host, folder: &std::path::Path) -> anyhow::Result<String> {
    let packed = std::process::Command::new("tar").arg("-C").arg(folder).args(["-c", "Dockerfile"]).output()?;
    ensure!(packed.status.success(), "tar: {}", support::text(&packed.stderr));
    let content = futures_util::stream::iter([Ok(bytes::Bytes::from(packed.stdout))]);
    Ok(host.client.upload(None, content, |_| {}).await?.id)
}

/// Builds a version: its id, and milliseconds from the request until it was ready.
async fn build(template: &Template, context: &str, no_cache: bool) -> anyhow::Result<(String, f64)> {
    let source = Source::Dockerfile(Dockerfile {
        context: Some(context.into()),
        text: None,
        path: None,
        target: None,
        args: [].into(),
        secrets: Secrets::default(),
        credentials: [].into(),
        no_cache,
    });
    let begin = Instant::now();
    let version = template.build(&version_of(source)).await;
    Ok((version.id, elapsed(begin)))
}
