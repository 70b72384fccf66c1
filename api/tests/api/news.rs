//! What wakes the tasks that rest while there is nothing new.

use std::time::Duration;

use sandpiper_api::orchestration::news::{Listener, News};
use sandpiper_db::Database;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::Host;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// News of a host, all that there was until now already taken notice of.
async fn listen(host: &Host) -> (News, watch::Sender<bool>) {
    let database = Database::open(&host.test_database.location.parse().unwrap()).await.unwrap();
    let listener = Listener::new(host.app.agent.clone(), database.writes(), Duration::from_millis(10));
    let mut news = listener.news();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(listener.run(stopped));
    // The agent's first revision and the first mark of the database are news. Others write to the same server of PostgreSQL.
    for _ in 0..20 {
        if timeout(SHORT, news.wait(LONG)).await.is_err() {
            break;
        }
    }
    (news, stop)
}

#[tokio::test]
async fn a_change_at_the_agent_is_news() {
    let host = Host::new().await;
    let (mut news, _stop) = listen(&host).await;

    host.agent.records().revision += 1;

    timeout(LONG / 2, news.wait(LONG)).await.expect("nobody was told");
}

#[tokio::test]
async fn what_is_written_to_the_database_is_news() {
    let host = Host::new().await;
    let (mut news, _stop) = listen(&host).await;

    host.sandbox().await;

    timeout(LONG / 2, news.wait(LONG)).await.expect("nobody was told");
}

#[tokio::test]
async fn while_the_agent_is_away_there_may_always_be_news() {
    let mut host = Host::new().await;
    let (mut news, _stop) = listen(&host).await;

    host.agent.stop();

    for _ in 0..3 {
        timeout(LONG / 2, news.wait(LONG)).await.expect("nobody was told");
    }
}

#[tokio::test]
async fn who_is_told_nothing_does_not_wait() {
    timeout(LONG / 2, News::unknown().wait(LONG)).await.expect("it waited");
}
