//! From events to deliveries: once each, whoever looks and whatever ends in between.

use std::collections::BTreeSet;

use sandpiper_db::testing::{TestStore, refusal};
use serde_json::json;
use tokio::task::JoinSet;

use super::super::Store;
use super::super::events::{EventRow, NewEvent, write};
use super::super::testing::test_store;
use super::*;
use crate::plan::Plan;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn body(event: EventRow) -> Vec<u8> {
    event.sequence.to_string().into_bytes()
}

async fn team(store: &Store, slug: &str) -> TeamId {
    store.teams.ensure(slug, Plan::Pro, NOW).await.unwrap().id
}

async fn webhook(store: &Store, team: &TeamId, types: &[EventType]) -> WebhookKey {
    let key = WebhookKey { team: team.clone(), id: WebhookId::generate() };
    let new = NewWebhook {
        key: key.clone(),
        name: String::new(),
        url: "https://hooks.example.test/".to_owned(),
        types: types.to_vec(),
        sealed: "sealed".to_owned(),
    };
    store.webhooks.create(new, Quota { webhooks: 10, ..Quota::default() }, NOW).await.unwrap();
    key
}

/// Tells of something, and commits it.
async fn tell(store: &TestStore<Store>, team: &TeamId, event_type: EventType) {
    let event =
        NewEvent { team: team.clone(), event_type, resource: "vol1".to_owned(), data: json!({}), created_at: NOW };
    let mut tx = store.database.write_shared().await.unwrap();
    write(&mut tx, vec![event]).await.unwrap();
    tx.commit().await.unwrap();
}

/// Looks until there is nothing to look for.
async fn enqueue_all(store: &Store) {
    loop {
        let behind = store.webhooks.behind(10).await.unwrap();
        if behind.is_empty() {
            return;
        }
        for key in behind {
            store.webhooks.enqueue(key, body, NOW).await.unwrap();
        }
    }
}

/// The numbers of the events of which there are deliveries, in their order.
async fn delivered(store: &Store, key: &WebhookKey) -> Vec<u64> {
    let rows = store.webhooks.deliveries(key, None, None, 1000).await.unwrap();
    let mut numbers: Vec<_> = rows.iter().map(|row| row.event_sequence.unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn a_webhook_gets_what_it_selects_from_its_making_on() {
    let store = test_store().await;
    let (team, rival) = (team(&store, "acme").await, team(&store, "rival").await);
    tell(&store, &team, EventType::VolumeCreated).await;
    let all = webhook(&store, &team, &[]).await;
    let deleted = webhook(&store, &team, &[EventType::VolumeDeleted]).await;
    let foreign = webhook(&store, &rival, &[]).await;
    for event_type in [EventType::VolumeCreated, EventType::VolumeDeleted, EventType::VolumeLost] {
        tell(&store, &team, event_type).await;
    }

    enqueue_all(&store).await;
    enqueue_all(&store).await;

    assert_eq!(delivered(&store, &all).await, [2, 3, 4]);
    assert_eq!(delivered(&store, &deleted).await, [3]);
    assert_eq!(delivered(&store, &foreign).await, [0; 0]);
    let row = &store.webhooks.deliveries(&deleted, None, None, 1).await.unwrap()[0];
    assert_eq!(store.webhooks.delivery(&deleted, row.id.as_str()).await.unwrap().unwrap().1, b"3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_event_is_delivered_once_however_many_processes_look() {
    const EVENTS: u64 = 250;
    let store = test_store().await;
    let team = team(&store, "acme").await;
    let key = webhook(&store, &team, &[]).await;
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        let key = key.clone();
        tasks.spawn(async move {
            while delivered(&other, &key).await.len() < usize::try_from(EVENTS).unwrap() {
                enqueue_all(&other).await;
            }
        });
    }
    for _ in 0..EVENTS {
        tell(&store, &team, EventType::VolumeCreated).await;
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }

    assert_eq!(delivered(&store, &key).await, (1..=EVENTS).collect::<Vec<_>>());
    let rows = store.webhooks.deliveries(&key, None, None, 1000).await.unwrap();
    assert_eq!(rows.iter().map(|row| &row.id).collect::<BTreeSet<_>>().len(), rows.len());
}

#[tokio::test]
async fn while_it_is_disabled_nothing_is_enqueued_and_what_waits_is_cancelled() {
    let store = test_store().await;
    let team = team(&store, "acme").await;
    let key = webhook(&store, &team, &[]).await;
    tell(&store, &team, EventType::VolumeCreated).await;
    enqueue_all(&store).await;
    let enabled = |enabled| WebhookChange { enabled: Some(enabled), ..WebhookChange::default() };

    store.webhooks.change(key.clone(), enabled(false), NOW).await.unwrap().unwrap();
    tell(&store, &team, EventType::VolumeDeleted).await;
    enqueue_all(&store).await;
    store.webhooks.change(key.clone(), enabled(true), NOW).await.unwrap().unwrap();
    tell(&store, &team, EventType::VolumeLost).await;
    enqueue_all(&store).await;

    assert_eq!(delivered(&store, &key).await, [1, 3]);
    let rows = store.webhooks.deliveries(&key, None, None, 10).await.unwrap();
    let states: BTreeSet<_> = rows.iter().map(|row| (row.event_sequence.unwrap(), row.state.as_str())).collect();
    assert_eq!(states, BTreeSet::from([(1, "cancelled"), (3, "pending")]));
}

#[tokio::test]
async fn events_that_a_webhook_waits_for_are_kept_however_old() {
    let store = test_store().await;
    let team = team(&store, "acme").await;
    let key = webhook(&store, &team, &[]).await;
    for _ in 0..3 {
        tell(&store, &team, EventType::VolumeCreated).await;
    }
    let late = NOW + jiff::SignedDuration::from_hours(1);
    assert_eq!(store.events.remove_old(&team, late, 1).await.unwrap(), 0);

    enqueue_all(&store).await;

    assert_eq!(store.events.remove_old(&team, late, 1).await.unwrap(), 3);
    assert_eq!(delivered(&store, &key).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_deleted_webhook_is_gone_with_its_last_delivery() {
    let store = test_store().await;
    let team = team(&store, "acme").await;
    let key = webhook(&store, &team, &[]).await;
    tell(&store, &team, EventType::VolumeCreated).await;
    enqueue_all(&store).await;
    assert!(store.webhooks.delete(key.clone(), NOW).await.unwrap());
    assert!(!store.webhooks.delete(key.clone(), NOW).await.unwrap());
    let rows = async || -> i64 {
        let count = sqlx::query_scalar("SELECT COUNT(*) FROM team_webhooks").fetch_one(store.database.read());
        count.await.unwrap()
    };

    webhook(&store, &team, &[]).await;
    assert_eq!(rows().await, 2, "its delivery is kept for a while");
    assert_eq!(store.webhooks.sent.delete_ended(NOW).await.unwrap(), 1);
    webhook(&store, &team, &[]).await;

    assert_eq!(rows().await, 2);
    assert_eq!(store.webhooks.get(&key).await.unwrap(), None);
}

#[tokio::test]
async fn the_schema_itself_keeps_states_and_columns_together() {
    let store = test_store().await;
    let team = team(&store, "acme").await;
    webhook(&store, &team, &[]).await;
    tell(&store, &team, EventType::VolumeCreated).await;
    enqueue_all(&store).await;
    let mut tx = store.database.write().await.unwrap();
    let mut refused = async |statement| refusal(&mut tx, statement).await.to_lowercase();

    for statement in [
        "UPDATE team_webhooks SET sealed = NULL",
        "UPDATE team_webhooks SET deleted_at_ms = 1, sealed = NULL",
        "UPDATE team_webhooks SET url = 'https://elsewhere.example.test/'",
        "UPDATE team_webhook_deliveries SET state = 'in_flight'",
        "UPDATE team_webhook_deliveries SET next_at_ms = NULL",
        "UPDATE team_webhook_deliveries SET state = 'delivered', next_at_ms = NULL, ended_at_ms = 1",
        "UPDATE team_webhook_deliveries SET event_sequence = NULL",
        "UPDATE team_webhook_deliveries SET trigger = 'redelivery'",
    ] {
        assert!(refused(statement).await.contains("check"), "{statement}");
    }
    let again = "INSERT INTO team_webhook_deliveries (id, team_id, webhook_id, state, trigger, event_sequence, event_type, \
                     created_at_ms, next_at_ms, body) \
                 SELECT 'dlv_11111111111111111111111111', team_id, webhook_id, state, trigger, event_sequence, event_type, \
                     created_at_ms, next_at_ms, body FROM team_webhook_deliveries";
    assert!(refused(again).await.contains("unique"));
    let cancelled = "UPDATE team_webhook_deliveries SET state = 'cancelled', next_at_ms = NULL, ended_at_ms = 1";
    assert_eq!(refused(cancelled).await, "");
    let back = "UPDATE team_webhook_deliveries SET state = 'pending', next_at_ms = 1, ended_at_ms = NULL";
    assert!(refused(back).await.contains("ended stays ended"));
}
