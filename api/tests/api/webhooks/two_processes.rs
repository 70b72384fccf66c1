//! Two real processes on one database.

use std::collections::HashSet;

use futures_util::future::join;
use futures_util::stream::{self, StreamExt as _};
use sandpiper_db::testing::TestDatabase;
use sandpiper_payments::domain::order::Status;
use serde_json::Value;

use super::receiver::{Received, Receiver};
use super::server::{Server, operator_key, send, write_config};
use super::stage::order;
use crate::support::eventually;

const PAYMENTS: usize = 300;
/// Reports at a time, to each process.
const REPORTS_AT_ONCE: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_are_told_the_same_send_every_webhook_once() {
    if std::env::var_os("SANDPIPER_TEST_POSTGRES").is_none() {
        return sandpiper_skip::skipped(
            "webhooks of two processes",
            "one process serves SQLite; the run on PostgreSQL has it",
        );
    }
    let receiver = Receiver::answering(200).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let operator = operator_key(&config);
    let (one, other) = (Server::start(&config, "info").await, Server::start(&config, "info").await);
    let (merchant, _) = one.merchant(&operator, "shop", &receiver.url()).await;

    let reports = stream::iter(0..PAYMENTS).map(async |number| {
        let order = order(&format!("pay_{number}"), Status::Completed, 1);
        join(one.report(&operator, &merchant, &order), other.report(&operator, &merchant, &order)).await
    });
    let answers: Vec<(Value, Value)> = reports.buffer_unordered(REPORTS_AT_ONCE).collect().await;
    let mut made = HashSet::new();
    for (by_one, by_other) in &answers {
        assert_eq!(by_one["deliveryId"], by_other["deliveryId"], "two reports of one update have one delivery");
        made.insert(by_one["deliveryId"].as_str().unwrap().to_owned());
    }
    eventually("every result is written down", async || attempts(&one).await + attempts(&other).await >= PAYMENTS)
        .await;

    let keys: Vec<_> = receiver.received().iter().map(Received::key).collect();
    assert_eq!(keys.len(), PAYMENTS, "nothing is sent twice");
    assert_eq!(keys.into_iter().collect::<HashSet<_>>(), made);
    let (by_one, by_other) = (attempts(&one).await, attempts(&other).await);
    assert!(by_one > 0 && by_other > 0, "one process did everything: {by_one} and {by_other}");
}

/// Attempts that a process has made.
async fn attempts(server: &Server) -> usize {
    let metrics = send(&server.metrics, "GET", "/metrics", "", &Value::Null).await.unwrap();
    let lines = metrics.lines().filter(|line| line.starts_with("sandpiper_api_webhook_attempts_total{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
}
