//! A sandbox that would notice if anything of it was lost.
//!
//! In it is a file of numbers, one a line, each written after the one before had reached the disk. Whatever is killed, the
//! file has all that were acknowledged, each once. The kernel's id of this boot says whether processes were lost: only a
//! killed monitor may change it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use reqwest::Method;
use sandpiper::client::{Output, Session};
use serde_json::{Value, json};
use support::{Host, shell, text};

use crate::caller::{Caller, PAUSE, TIMEOUT};
use crate::comparison::Wanted;
use crate::observer::now_ms;

/// For a command in a guest, in software emulation beside others.
const RUN: Duration = Duration::from_secs(60);
/// The lock is for a command whose client has given it up, and which runs all the same.
const WRITE: &str = "exec 9>>lock; flock 9; n=$(($(wc -l < log) + 1)); echo $n >> log && sync log && echo $n";
const READ: &str = "cat /proc/sys/kernel/random/boot_id; exec 9>>lock; flock 9; cat log";

pub(crate) struct Subject {
    caller: Caller,
    pub(crate) id: String,
    /// Numbers that are on the disk.
    acknowledged: u64,
    /// Of the last look; none before the first.
    boot: Option<String>,
    /// How often its monitor had been killed by then.
    crashes: usize,
}

impl Subject {
    /// A new sandbox of the base template.
    pub(crate) async fn create(caller: &Caller) -> anyhow::Result<Self> {
        let body = json!({"template": "base", "memory_mb": 256, "cpu": 1, "timeout": 7200});
        let asked_ms = now_ms();
        let created = caller.ask("create", Method::POST, "/v1/sandboxes", &body).await?;
        let mut subject = Self::new(caller, &created, asked_ms)?;
        subject.run("touch log lock; sync . log").await?;
        subject.verify().await?;
        Ok(subject)
    }

    /// One that has just been made, for which was asked first at `asked_ms`.
    fn new(caller: &Caller, shown: &Value, asked_ms: i64) -> anyhow::Result<Self> {
        let id = shown["id"].as_str().with_context(|| format!("a sandbox without an id: {shown}"))?.to_owned();
        caller.ledger.told(&id, Wanted::Running, asked_ms);
        // It may have crashed before anybody was told of it.
        Ok(Self { caller: caller.clone(), id, acknowledged: 0, boot: None, crashes: 0 })
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.id)
    }

    pub(crate) async fn pause(&self) -> anyhow::Result<()> {
        self.ask_for(Wanted::Stopped, "pause", "/pause").await.map(drop)
    }

    pub(crate) async fn resume(&self) -> anyhow::Result<()> {
        self.ask_for(Wanted::Running, "resume", "/resume").await.map(drop)
    }

    /// What answers the request that it runs, or does not.
    async fn ask_for(&self, wanted: Wanted, what: &'static str, path: &str) -> anyhow::Result<Value> {
        let asked_ms = now_ms();
        let answer = self.caller.ask(what, Method::POST, &self.path(path), &json!({})).await?;
        self.caller.ledger.told(&self.id, wanted, asked_ms);
        Ok(answer)
    }

    /// Writes one more number and has it reach the disk.
    pub(crate) async fn write(&mut self) -> anyhow::Result<()> {
        let written = self.run(WRITE).await?;
        let number = written.trim().parse().with_context(|| format!("a number that was written: {written:?}"))?;
        ensure!(number > self.acknowledged, "lost: {number} was written anew, {} were there", self.acknowledged);
        self.acknowledged = number;
        Ok(())
    }

    /// Looks whether all is there.
    ///
    /// # Errors
    /// A sentence that says what is lost.
    pub(crate) async fn verify(&mut self) -> anyhow::Result<()> {
        let crashes = self.caller.ledger.crashes_of(&self.id);
        let seen = self.run(READ).await?;
        let (boot, log) = seen.split_once('\n').context("a guest without a boot's id")?;
        let expected: String = (1..=self.acknowledged).map(|number| format!("{number}\n")).collect();
        let rest = log.strip_prefix(&expected).with_context(|| {
            format!("lost: {} numbers were acknowledged, and this is there: {log:?}", self.acknowledged)
        })?;
        let more: String =
            (self.acknowledged + 1..).take(rest.lines().count()).map(|number| format!("{number}\n")).collect();
        ensure!(rest == more, "doubled: after {} numbers comes {rest:?}", self.acknowledged);

        let before = self.boot.replace(boot.to_owned());
        // A monitor that is killed during the look makes another one run where it broke off.
        let excused = self.crashes != self.caller.ledger.crashes_of(&self.id);
        self.crashes = crashes;
        let is_same = before.is_none_or(|before| before == boot);
        ensure!(is_same || excused, "lost: the processes; it was booted anew, and its monitor was not killed");
        Ok(())
    }

    /// Replaces its network policy, and looks whether that is what is shown from then on.
    pub(crate) async fn set_network(&self, address: &str) -> anyhow::Result<()> {
        let policy = json!({"allow_internet_access": false, "allow_out": [address]});
        self.caller.ask("network", Method::PUT, &self.path("/network"), &policy).await?;
        let shown = self.caller.ask("show", Method::GET, &self.path(""), &Value::Null).await?;
        let allowed = &shown["network"]["allow_out"];
        ensure!(*allowed == policy["allow_out"], "lost: the network policy {policy}; shown is {}", shown["network"]);
        Ok(())
    }

    /// Takes a checkpoint, has another sandbox start from it, looks whether all is there, and takes both away.
    pub(crate) async fn checkpoint(&self, memory: bool) -> anyhow::Result<()> {
        let what = if memory { "checkpoint with memory" } else { "checkpoint" };
        let crashes = self.caller.ledger.crashes_of(&self.id);
        let taken = self.caller.ask(what, Method::POST, &self.path("/checkpoints"), &json!({"memory": memory})).await?;
        let id = taken["id"].as_str().with_context(|| format!("a checkpoint without an id: {taken}"))?;
        let body = json!({"snapshot_id": id, "timeout": 7200});
        let asked_ms = now_ms();
        let restored = self.caller.ask("restore", Method::POST, "/v1/sandboxes", &body).await?;
        let copy = self.copy(&restored, asked_ms, memory.then_some(crashes))?;
        copy.verify_and_delete().await.with_context(|| format!("restored from {id}"))?;
        self.caller.delete("delete", &format!("/v1/checkpoints/{id}")).await
    }

    /// Forks it, looks whether all is there, and takes the fork away.
    pub(crate) async fn fork(&self) -> anyhow::Result<()> {
        let crashes = self.caller.ledger.crashes_of(&self.id);
        let asked_ms = now_ms();
        let forked = self.caller.ask("fork", Method::POST, &self.path("/fork"), &json!({"count": 1})).await?;
        self.copy(&forked["sandboxes"][0], asked_ms, Some(crashes))?.verify_and_delete().await.context("forked")
    }

    /// A sandbox that goes on from where this one was. It has the same processes if it was made with memory, and this one
    /// has crashed no more often than it had before.
    fn copy(&self, shown: &Value, asked_ms: i64, crashes: Option<usize>) -> anyhow::Result<Self> {
        let mut copy = Self::new(&self.caller, shown, asked_ms)?;
        copy.acknowledged = self.acknowledged;
        let is_same = crashes.is_some_and(|before| before == self.caller.ledger.crashes_of(&self.id));
        copy.boot = self.boot.clone().filter(|_| is_same && self.crashes == self.caller.ledger.crashes_of(&self.id));
        Ok(copy)
    }

    async fn verify_and_delete(mut self) -> anyhow::Result<()> {
        self.verify().await.with_context(|| self.id.clone())?;
        self.write().await?;
        self.delete().await
    }

    /// Takes it away, and looks whether it is gone.
    pub(crate) async fn delete(self) -> anyhow::Result<()> {
        let asked_ms = now_ms();
        self.caller.delete("delete", &self.path("")).await?;
        self.caller.ledger.told(&self.id, Wanted::Stopped, asked_ms);
        let shown = Host::shared().client.show(&self.id).await;
        match shown {
            Ok(shown) => anyhow::bail!("left over: {} was deleted and is {}", self.id, shown.state),
            // Nobody may be there to ask, just now.
            Err(_) => Ok(()),
        }
    }

    /// What a command in it prints. A sandbox that is stopped is resumed for it, as often as need be.
    async fn run(&self, script: &str) -> anyhow::Result<String> {
        let begin = Instant::now();
        let mut requests = 0;
        loop {
            let mut answer = self.ask_for(Wanted::Running, "connect", "/connect").await?;
            let session: Session = serde_json::from_value(answer["session"].take())?;
            requests += 1;
            let data_plane = Host::shared().client.data_plane(&session);
            let why = match tokio::time::timeout(RUN, data_plane.run(&shell(script, None))).await {
                Ok(Ok(Output { stdout, end, .. })) if end.exit_code == 0 => {
                    self.caller.ledger.acknowledged("command", requests);
                    return Ok(text(&stdout));
                }
                Ok(Ok(Output { stderr, end, .. })) => format!("exit status {}: {}", end.exit_code, text(&stderr)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no end within {} s", RUN.as_secs()),
            };
            ensure!(begin.elapsed() < TIMEOUT, "{}: {script:?} does not run; at last: {why}", self.id);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
