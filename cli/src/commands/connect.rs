//! The data plane of a sandbox that is there.

use anyhow::bail;
use sandpiper::client::{Client, DataPlane};

use crate::output::Output;

/// Opens the data plane of sandbox `id`. A paused one is resumed if it was made to be; otherwise that is said.
pub(crate) async fn data_plane(client: &Client, id: &str, output: Output) -> anyhow::Result<DataPlane> {
    let sandbox = client.show(id).await?;
    let paused = matches!(sandbox.state.as_str(), "stopping" | "stopped");
    if paused && !sandbox.lifecycle.auto_resume {
        bail!("{id} is paused; resume it first, with: sandpiper resume {id}");
    }
    let progress = output.progress(if paused { "resuming the sandbox" } else { "connecting" });
    let session = client.connect(id).await?;
    drop(progress);
    Ok(client.data_plane(&session))
}
