//! Writers beside each other, and what a reader sees of them.

use serde_json::json;
use tokio::task::JoinSet;

use super::super::Store;
use super::super::testing::test_store;
use super::*;
use crate::plan::Plan;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn event(team: &TeamId) -> NewEvent {
    let (event_type, resource) = (EventType::VolumeCreated, "vol1".to_owned());
    NewEvent { team: team.clone(), event_type, resource, data: json!({}), created_at: NOW }
}

async fn read(store: &Store, team: &TeamId, after: u64) -> Vec<u64> {
    let page = store.events.page(team, after, &EventFilter::default(), 100).await.unwrap();
    page.events.iter().map(|event| event.sequence).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_who_goes_on_from_the_last_number_sees_every_event() {
    const WRITERS: u64 = 8;
    const EACH: u64 = 12;
    let store = test_store().await;
    let other = Database::open(&store.location()).await.unwrap();
    let team = store.teams.ensure("acme", Plan::Pro, NOW).await.unwrap().id;

    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let database = if writer % 2 == 0 { store.database.clone() } else { other.clone() };
        let team = team.clone();
        writers.spawn(async move {
            for n in 0..EACH {
                let mut tx = if n % 3 == 0 { database.write().await } else { database.write_shared().await }.unwrap();
                write(&mut tx, vec![event(&team)]).await.unwrap();
                // Others have their turn before the commit, and some never commit.
                for _ in 0..writer {
                    tokio::task::yield_now().await;
                }
                if n % 4 == 3 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
            }
        });
    }
    let committed = WRITERS * EACH * 3 / 4;
    let mut seen = Vec::new();
    while u64::try_from(seen.len()).unwrap() < committed {
        seen.extend(read(&store, &team, seen.last().copied().unwrap_or_default()).await);
    }
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }

    assert_eq!(seen, (1..=committed).collect::<Vec<_>>());
    assert_eq!(store.events.page(&team, 0, &EventFilter::default(), 1).await.unwrap().last, committed);
}

#[tokio::test]
async fn events_of_several_teams_are_numbered_for_each() {
    let store = test_store().await;
    let one = store.teams.ensure("one", Plan::Pro, NOW).await.unwrap().id;
    let two = store.teams.ensure("two", Plan::Pro, NOW).await.unwrap().id;
    let mut tx = store.database.write().await.unwrap();
    write(&mut tx, vec![event(&two), event(&one), event(&two), event(&two)]).await.unwrap();
    assert_eq!(read(&store, &two, 0).await, [0; 0], "nothing is seen before the commit");
    tx.commit().await.unwrap();
    assert_eq!((read(&store, &one, 0).await, read(&store, &two, 0).await), (vec![1], vec![1, 2, 3]));
}
