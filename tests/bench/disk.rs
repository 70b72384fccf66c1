//! A guest's root disk, past the guest's page cache.

use anyhow::Context;
use serde::Deserialize;
use support::{Host, shell};

use crate::figure::Report;

/// Runs in the guest. O_DIRECT wants aligned memory: an anonymous mapping is.
const SCRIPT: &str = r#"
import json, mmap, os, random, time
SIZE, BLOCK, COUNT = 64 << 20, 4096, 500
random.seed(1)
def timed(work, amount):
    start = time.monotonic()
    work()
    return amount / (time.monotonic() - start)
big, small = mmap.mmap(-1, 1 << 20), mmap.mmap(-1, BLOCK)
big.write(os.urandom(1 << 20)); small.write(os.urandom(BLOCK))
fd = os.open("/root/bench.bin", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
def write_all():
    for offset in range(0, SIZE, 1 << 20): os.pwritev(fd, [big], offset)
    os.fsync(fd)
def read_all():
    for offset in range(0, SIZE, 1 << 20): os.preadv(fd, [big], offset)
offsets = [random.randrange(SIZE // BLOCK) * BLOCK for _ in range(COUNT)]
def read_some():
    for offset in offsets: os.preadv(fd, [small], offset)
def write_some():
    for offset in offsets: os.pwritev(fd, [small], offset)
    os.fsync(fd)
for _ in range(3):
    print(json.dumps({"write": timed(write_all, 64), "read": timed(read_all, 64),
                      "read_4k": timed(read_some, COUNT), "write_4k": timed(write_some, COUNT)}), flush=True)
"#;

#[derive(Deserialize)]
struct Round {
    write: f64,
    read: f64,
    read_4k: f64,
    write_4k: f64,
}

pub(crate) async fn run(report: &mut Report) -> anyhow::Result<()> {
    let sandbox = Host::shared().sandbox().await;
    sandbox.data_plane.write_file("/root/bench.py", SCRIPT.as_bytes().to_vec(), Some("root")).await?;
    let output = sandbox.data_plane.run(&shell("python3 /root/bench.py", Some("root"))).await?;
    let rounds: Vec<Round> = String::from_utf8(output.stdout)?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let column = |pick: fn(&Round) -> f64| rounds.iter().map(pick).collect::<Vec<_>>();
    report.add("disk", "sequential_write", "MiB/s", &column(|round| round.write));
    report.add("disk", "sequential_read", "MiB/s", &column(|round| round.read));
    report.add("disk", "random_read_4k", "ops/s", &column(|round| round.read_4k));
    report.add("disk", "random_write_4k", "ops/s", &column(|round| round.write_4k));
    sandbox.delete().await;
    Ok(())
}
