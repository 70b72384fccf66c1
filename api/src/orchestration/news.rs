//! Whether there may be something new, for tasks that look again and again at a host where mostly nothing happens.
//!
//! The agent says so when a sandbox has changed, and the database is asked for a mark of its writes, which costs next to nothing.
//! Where neither can be had, there may always be something new: then tasks look as often as they would without this.

use std::time::Duration;

use sandpiper_db::writes::Writes;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::agent_client::AgentClient;

/// How many rounds in a row a task leaves out where there is no news, at most: what is due by the time alone waits that long.
pub const MOST_LEFT_OUT: u32 = 29;

/// One task's view: what it has not looked at yet is new to it.
#[derive(Debug, Clone)]
pub struct News(watch::Receiver<()>);

/// Who tells of it. When it is dropped, there may always be something new.
#[derive(Debug)]
pub struct Listener {
    news: watch::Sender<()>,
    agent: AgentClient,
    writes: Writes,
    /// From one look at the database to the next, at least.
    period: Duration,
}

impl News {
    /// When nobody listens.
    pub fn unknown() -> Self {
        Self(watch::channel(()).1)
    }

    /// The same for tasks that know nothing of an agent.
    pub fn receiver(&self) -> watch::Receiver<()> {
        self.0.clone()
    }

    /// Returns when there may be something new, or after so long.
    pub async fn wait(&mut self, longest: Duration) {
        // An error is that nobody listens, or that it took too long.
        let _ = timeout(longest, self.0.changed()).await;
    }
}

impl Listener {
    /// One that has heard nothing yet.
    pub fn new(agent: AgentClient, writes: Writes, period: Duration) -> Self {
        Self { news: watch::Sender::default(), agent, writes, period }
    }

    /// For a task that wants to be told.
    pub fn news(&self) -> News {
        News(self.news.subscribe())
    }

    /// Listens until `stop` changes.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { news, agent, writes, period } = self;
        tokio::select! {
            () = hear_agent(&news, &agent, period) => {}
            () = watch_database(&news, writes, period) => {}
            _ = stop.changed() => {}
        }
    }
}

async fn hear_agent(news: &watch::Sender<()>, agent: &AgentClient, period: Duration) {
    let mut known = None;
    loop {
        let heard = agent.changes(known).await;
        let heard = heard.inspect_err(|error| {
            tracing::debug!(error = chain(error), "the agent does not tell of changes; looking for them");
        });
        let heard = heard.ok();
        if heard.is_none() || heard != known {
            news.send_replace(());
        }
        known = heard;
        // An agent that ends responds at once.
        sleep(period).await;
    }
}

async fn watch_database(news: &watch::Sender<()>, mut writes: Writes, period: Duration) {
    let mut last = None;
    loop {
        let mark = writes.mark().await;
        let mark =
            mark.inspect_err(|error| tracing::debug!(error = chain(error), "the database does not tell of writes"));
        let mark = mark.ok();
        if mark.is_none() || mark != last {
            news.send_replace(());
        }
        last = mark;
        writes.wait(period).await;
    }
}
