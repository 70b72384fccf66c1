//! An image of 200 MiB that no cache has: from a file, its sending included, and from a registry, each until the version is
//! `ready`; and the same image taken by plain buildah on this machine.

use std::io;
use std::path::Path;
use std::time::Instant;

use sandpiper::client::Source;
use support::registry::{self, Registry};
use support::{Host, Template, version_of};
use tokio_util::io::ReaderStream;

use crate::report::{Report, mebibytes};

const IMAGE: &str = "registry.example.test:5000/bench-import:1";
const KIND: &str = "oci-archive";
/// Of what cannot be packed any further; the base below it is small.
const MIB: u64 = 200;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let (host, registry) = (Host::shared(), Registry::with_base());
    let template = host.template("bench-import").await;
    let (mut from_file, mut from_registry, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs.div_ceil(4) {
        let folder = tempfile::tempdir_in("/var/lib/sandpiper")?;
        let file = folder.path().join("image.tar");
        make_image(registry, folder.path(), run)?;
        registry.save(IMAGE, KIND, &file);
        registry.push(IMAGE);
        registry.remove(IMAGE);

        let begin = Instant::now();
        let content = ReaderStream::with_capacity(tokio::fs::File::open(&file).await?, 256 << 10);
        let upload = host.client.upload(Some(file.metadata()?.len()), content, |_| {}).await?;
        build(&template, Source::Archive(upload.id.clone())).await?;
        from_file.push(rate(begin));
        host.client.delete_upload(&upload.id).await?;

        // Another image, so that nothing of it is there.
        make_image(registry, folder.path(), run + runs)?;
        registry.push(IMAGE);
        registry.remove(IMAGE);
        let begin = Instant::now();
        build(&template, Source::Image { reference: IMAGE.into(), credentials: None }).await?;
        from_registry.push(rate(begin));

        let begin = Instant::now();
        let loaded = registry.load(KIND, &file);
        registry.with_root(&loaded, |_| ());
        plain.push(rate(begin));
        registry.remove(&loaded);
    }
    report.add("template-import", "from_file", "MiB/s", &from_file);
    report.add("template-import", "from_registry", "MiB/s", &from_registry);
    report.add("template-import", "buildah_from_file", "MiB/s", &plain);
    template.delete().await;
    Ok(())
}

/// An image whose content is another for each `number`.
fn make_image(registry: &Registry, folder: &Path, number: usize) -> io::Result<()> {
    let context = folder.join(format!("context-{number}"));
    std::fs::create_dir(&context)?;
    let text = format!("FROM {}\nRUN head -c {MIB}M /dev/urandom >/big && echo {number} >/number\n", registry::BASE);
    std::fs::write(context.join("Dockerfile"), text)?;
    registry.build(&context, IMAGE);
    Ok(())
}

async fn build(template: &Template, source: Source) -> anyhow::Result<()> {
    let version = template.build(&version_of(source)).await;
    template.delete_version(&version.id).await?;
    Ok(())
}

/// MiB a second since then.
fn rate(begin: Instant) -> f64 {
    mebibytes(MIB << 20) / begin.elapsed().as_secs_f64()
}
