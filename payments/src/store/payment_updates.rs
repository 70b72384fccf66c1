//! The one way in for updates of payments: the update, the webhook that tells of it, and the audit's entry are one
//! transaction.
//!
//! Updates that come while another transaction is under way wait together, and the next takes all of them up: a statement for
//! many costs little more than one for one. Payments that were not known are most of what comes, and are added all at once;
//! so are the webhooks and the audit's entries of all updates. What is between, looking at a payment that is known and judging
//! what it may become, is done one by one, in the order in which they came. What comes out is what one after the other would
//! have given.
//!
//! A database that refuses a statement for many does not say whose fault it was. Then each update is tried alone, and fails
//! alone.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use jiff::Timestamp;
use sandpiper_db::batch::Batch;
use sandpiper_db::{Statement, StoreError, Tx, audit, to_ms};
use sandpiper_protocol::error_chain::chain;
use sqlx::Row;
use tokio::sync::oneshot;

use super::deliveries::{self, NewDelivery};
use super::payments::{Accepted, PaymentUpdate, PutPaymentError, payment};
use super::webhook_endpoints::EndpointKey;
use crate::domain::transition::{Verdict, judge};

/// Updates in one statement.
const AT_ONCE: usize = 256;

/// An update, and what is written down with it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) update: PaymentUpdate,
    /// The PaymentOrder, as text.
    pub(super) document: String,
    /// Its status is that of the response to an update, whatever it says here.
    pub(super) entry: audit::Entry,
    pub(super) at: Timestamp,
}

type Outcome = Result<Accepted, PutPaymentError>;

/// A report whose caller waits.
struct Waiting {
    report: Arc<Report>,
    answer: oneshot::Sender<Outcome>,
}

/// Reports that wait for a transaction; clones are the same queue. There are no more than requests under way.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<Vec<Waiting>>>);

impl Queue {
    /// Adds a report; whether it is the first, so that somebody has to see to a transaction.
    fn add(&self, waiting: Waiting) -> bool {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(waiting);
        queue.len() == 1
    }

    /// Takes up all that wait: who comes next is the first again.
    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps those that were taken up elsewhere; their reports.
    fn keep(&self, taken: Vec<Waiting>) -> Vec<Arc<Report>> {
        let reports = taken.iter().map(|waiting| waiting.report.clone()).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
        reports
    }
}

/// Updates on their way in.
#[derive(Clone)]
pub(super) struct PaymentUpdates {
    batch: Batch,
    queue: Queue,
}

impl fmt::Debug for PaymentUpdates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PaymentUpdates")
    }
}

impl PaymentUpdates {
    pub(super) fn new(batch: Batch) -> Self {
        Self { batch, queue: Queue::default() }
    }

    /// Takes over an update, together with those that wait with it.
    pub(super) async fn put(&self, report: Report) -> Outcome {
        let (answer, answered) = oneshot::channel();
        if self.queue.add(Waiting { report: Arc::new(report), answer }) {
            tokio::spawn(self.clone().put_waiting());
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unwritten.into()))
    }

    /// Sees to a transaction for what waits, and answers.
    async fn put_waiting(self) {
        let (queue, taken) = (self.queue.clone(), Queue::default());
        let kept = taken.clone();
        let together = self.batch.write(move |tx| {
            Box::pin(async move {
                // Only now, so that all are in it that came while the transaction waited for its turn.
                let reports = kept.keep(queue.take());
                put_all(tx, &reports).await
            })
        });
        let together = together.await;
        let mut waiting = taken.take();
        if waiting.is_empty() {
            // There was no transaction.
            waiting = self.queue.take();
        }
        match together {
            Ok(outcomes) => waiting.into_iter().zip(outcomes).for_each(|(one, outcome)| one.answer(outcome)),
            Err(StoreError::Commit(error)) => {
                waiting.into_iter().for_each(|one| one.answer(Err(StoreError::Commit(error.clone()).into())));
            }
            Err(error) => self.put_each_alone(waiting, &error).await,
        }
    }

    async fn put_each_alone(&self, waiting: Vec<Waiting>, error: &StoreError) {
        tracing::debug!(error = chain(error), updates = waiting.len(), "updates of payments are tried one by one");
        let alone = waiting.into_iter().map(async |one| {
            let report = one.report.clone();
            let put = self.batch.write(move |tx| Box::pin(async move { put_all(tx, &[report]).await }));
            let outcome = put.await.map(|outcomes| outcomes.into_iter().next());
            match outcome {
                Ok(outcome) => one.answer(outcome.unwrap_or_else(|| Err(StoreError::Unwritten.into()))),
                Err(error) => one.answer(Err(PutPaymentError::Store(error))),
            }
        });
        join_all(alone).await;
    }
}

impl Waiting {
    fn answer(self, outcome: Outcome) {
        // Who does not wait any more does not want to know.
        let _ = self.answer.send(outcome);
    }
}

/// What an update did to its payment.
enum Change {
    Created,
    Updated,
    Repeated,
}

/// Puts reports in, as if one after the other. An error is of all of them, and nothing of any may stay.
async fn put_all(tx: &mut Tx, reports: &[Arc<Report>]) -> Result<Vec<Outcome>, StoreError> {
    let mut outcomes = Vec::with_capacity(reports.len());
    for reports in reports.chunks(AT_ONCE) {
        let mut changes = Vec::with_capacity(reports.len());
        let created = create(tx, reports).await?;
        for (index, report) in reports.iter().enumerate() {
            changes.push(match created.contains(&index) {
                true => Ok(Change::Created),
                false => refused_or_failed(put(tx, report).await)?,
            });
        }
        outcomes.extend(tell(tx, reports, changes).await?);
    }
    Ok(outcomes)
}

/// Sets what concerns one report apart from what concerns all.
fn refused_or_failed(change: Result<Change, PutPaymentError>) -> Result<Result<Change, PutPaymentError>, StoreError> {
    match change {
        Err(PutPaymentError::Store(error)) => Err(error),
        change => Ok(change),
    }
}

/// Adds the payments that are not known, each as the first report of it has it; which reports those are. Not among them is
/// the payment of no merchant.
async fn create(tx: &mut Tx, reports: &[Arc<Report>]) -> Result<HashSet<usize>, StoreError> {
    // In the order of their keys, as everywhere where several rows are touched.
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, report) in reports.iter().enumerate() {
        first.entry(&report.update.order.id).or_insert(index);
    }
    let mut statement = Statement::new(
        "INSERT INTO payments (id, merchant_id, realm, status, actual_amount, created_at_ms, updated_at_ms, document) \
         SELECT column1, m.id, column3, column4, column5, column6, column7, column8 FROM (",
    );
    statement.push_rows(first.values().map(|index| {
        let Report { update: PaymentUpdate { merchant_id, realm, order }, document, .. } = &*reports[*index];
        [
            order.id.as_str().into(),
            merchant_id.as_str().into(),
            realm.as_str().into(),
            order.status.as_str().into(),
            order.actual_amount.as_ref().map(|amount| amount.as_str()).into(),
            to_ms(order.created_at).into(),
            to_ms(order.updated_at).into(),
            document.as_str().into(),
        ]
    }));
    statement.push(") AS given, merchants m WHERE m.id = column2 ON CONFLICT (id) DO NOTHING RETURNING id");
    let rows = statement.build().fetch_all(&mut **tx).await?;
    let created = rows.iter().map(|row| Ok(first.get(row.try_get::<&str, _>("id")?).copied()));
    created.filter_map(Result::transpose).collect()
}

/// Puts one report in, but tells nobody.
async fn put(tx: &mut Tx, report: &Arc<Report>) -> Result<Change, PutPaymentError> {
    if !create(tx, std::slice::from_ref(report)).await?.is_empty() {
        return Ok(Change::Created);
    }
    let update = &report.update;
    // Held from here on: of two updates at once, the second is judged by what the first has left.
    let row = sqlx::query("UPDATE payments SET updated_at_ms = updated_at_ms WHERE id = $1 RETURNING *")
        .bind(&update.order.id)
        .fetch_optional(&mut **tx)
        .await?;
    let Some(row) = row else { return Err(PutPaymentError::NoMerchant(update.merchant_id.clone())) };
    let stored = payment(&row)?;
    if (stored.merchant_id.as_str(), stored.realm) != (&update.merchant_id, update.realm) {
        return Err(PutPaymentError::OfOther);
    }
    match judge(&stored.order()?, &update.order)? {
        Verdict::Repetition => Ok(Change::Repeated),
        Verdict::Accept => {
            sqlx::query(
                "UPDATE payments SET status = $2, actual_amount = $3, updated_at_ms = $4, document = $5 WHERE id = $1",
            )
            .bind(&update.order.id)
            .bind(update.order.status.as_str())
            .bind(update.order.actual_amount.as_ref().map(|amount| amount.as_str()))
            .bind(to_ms(update.order.updated_at))
            .bind(&report.document)
            .execute(&mut **tx)
            .await?;
            Ok(Change::Updated)
        }
    }
}

/// Enqueues the webhooks of what has changed, and writes the audit's entries of what was accepted.
async fn tell(
    tx: &mut Tx,
    reports: &[Arc<Report>],
    changes: Vec<Result<Change, PutPaymentError>>,
) -> Result<Vec<Outcome>, StoreError> {
    let all = || reports.iter().zip(&changes);
    let changed = all().filter(|(_, change)| matches!(change, Ok(Change::Created | Change::Updated)));
    let new: Vec<_> = changed.map(|(report, _)| delivery(report)).collect();
    let entries: Vec<_> = all()
        .filter_map(|(report, change)| {
            let status = if matches!(change.as_ref().ok()?, Change::Created) { 201 } else { 200 };
            Some(audit::Entry { status, ..report.entry.clone() })
        })
        .collect();
    audit::insert(tx, &entries).await?;
    let mut deliveries = deliveries::enqueue(tx, &new).await?.into_iter();
    let mut outcomes = Vec::with_capacity(reports.len());
    for (report, change) in reports.iter().zip(changes) {
        outcomes.push(match change {
            Ok(Change::Created) => Ok(Accepted::Created(deliveries.next().flatten())),
            Ok(Change::Updated) => Ok(Accepted::Updated(deliveries.next().flatten())),
            // Only now: it may repeat one of these.
            Ok(Change::Repeated) => Ok(Accepted::Repeated(deliveries::of_update(tx, &delivery(report)).await?)),
            Err(refused) => Err(refused),
        });
    }
    Ok(outcomes)
}

fn delivery(report: &Report) -> NewDelivery<'_> {
    let update = &report.update;
    NewDelivery {
        endpoint: EndpointKey { merchant_id: update.merchant_id.clone(), realm: update.realm },
        payment_id: &update.order.id,
        updated_at_ms: to_ms(update.order.updated_at),
        body: report.document.as_bytes(),
        made_at: report.at,
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use sandpiper_db::testing::TestStore;

    use super::*;
    use crate::domain::order::{PaymentOrder, Status};
    use crate::domain::realm::Realm;
    use crate::store::Store;
    use crate::store::delivery_list::Filter;
    use crate::store::testing::test_store;

    /// A store with two merchants, the first of which wants to be told of live payments.
    async fn shop() -> TestStore<Store> {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO merchants (id, name, created_at_ms) VALUES ('one', 'one', 0), ('two', 'two', 0); \
             INSERT INTO webhook_endpoints (merchant_id, realm, url, cap, updated_at_ms) VALUES \
             ('one', 'live', 'https://merchant.example.test/', 4, 0), ('two', 'live', NULL, 4, 0)",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        store
    }

    fn update(merchant_id: &str, payment_id: &str, status: Status, second: i64) -> PaymentUpdate {
        let order = PaymentOrder {
            id: payment_id.to_owned(),
            status,
            amount: "1500.00".parse().unwrap(),
            actual_amount: (status == Status::Completed).then(|| "1500.00".parse().unwrap()),
            currency_code: "KES".to_owned(),
            country_code: "KE".to_owned(),
            payment_method: "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER".to_owned(),
            operator: None,
            bank_code: None,
            mobile_money_transfer_details: None,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second),
            metadata: BTreeMap::default(),
        };
        PaymentUpdate { merchant_id: merchant_id.to_owned(), realm: Realm::Live, order }
    }

    async fn put(store: &TestStore<Store>, update: &PaymentUpdate) -> Outcome {
        let entry = audit::Entry {
            at: Timestamp::UNIX_EPOCH,
            team_id: audit::OPERATOR.to_owned(),
            key_id: "key".to_owned(),
            user_id: None,
            request_id: "request".to_owned(),
            action: "test".to_owned(),
            resource: Some(update.order.id.clone()),
            status: 0,
        };
        store.payments.put(update.clone(), entry, Timestamp::UNIX_EPOCH).await
    }

    /// What is stored: payments, deliveries and the audit's entries, each without what is random or has no order.
    async fn contents(store: &TestStore<Store>) -> [Vec<String>; 3] {
        let payments = store.payments.list(&Default::default(), None, 1000).await.unwrap();
        let deliveries = store.deliveries.list(&Filter::default(), None, 1000).await.unwrap();
        let entries = store.audit.newest(None, 1000).await.unwrap();
        let mut contents = [
            payments.iter().map(|payment| format!("{payment:?}")).collect(),
            deliveries.iter().map(|delivery| format!("{delivery:?}")).collect(),
            entries.iter().map(|entry| format!("{entry:?}")).collect::<Vec<_>>(),
        ];
        contents.iter_mut().for_each(|kind| kind.sort());
        contents
    }

    #[tokio::test]
    async fn updates_that_come_together_come_out_as_if_one_after_the_other() {
        let mut contradicting = update("one", "known", Status::Failed, 2);
        contradicting.order.country_code = "TZ".to_owned();
        let updates = [
            update("one", "new", Status::Completed, 1),
            update("one", "known", Status::Pending, 2),
            update("one", "known", Status::Pending, 1),
            contradicting,
            update("nobody", "of nobody", Status::Completed, 1),
            update("one", "of nobody", Status::Pending, 1),
            update("one", "twice", Status::Pending, 1),
            update("one", "twice", Status::Completed, 2),
            update("one", "twice", Status::Completed, 2),
            update("two", "twice", Status::Completed, 3),
            update("two", "untold", Status::Completed, 1),
        ];
        let (together, in_turn) = (shop().await, shop().await);
        for store in [&together, &in_turn] {
            put(store, &update("one", "known", Status::Pending, 1)).await.unwrap();
        }

        let outcomes = join_all(updates.iter().map(|update| put(&together, update))).await;
        let mut expected = Vec::new();
        for update in &updates {
            expected.push(put(&in_turn, update).await);
        }

        assert_eq!(format!("{outcomes:#?}"), format!("{expected:#?}"));
        assert_eq!(contents(&together).await, contents(&in_turn).await);
        let kinds: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
        assert_eq!(kinds, [true, true, false, false, false, true, true, true, true, false, true]);
        let (Ok(Accepted::Updated(told)), Ok(Accepted::Repeated(told_before))) = (&outcomes[7], &outcomes[8]) else {
            panic!("{outcomes:#?}");
        };
        assert!(told.is_some() && told == told_before);
        assert!(matches!(outcomes[10], Ok(Accepted::Created(None))));
    }

    #[tokio::test]
    async fn an_update_that_the_database_refuses_fails_alone_and_leaves_nothing() {
        let store = shop().await;
        let mut without_amount = update("one", "b", Status::Completed, 1);
        without_amount.order.actual_amount = None;
        let updates = [update("one", "a", Status::Pending, 1), without_amount, update("one", "c", Status::Pending, 1)];

        let outcomes = join_all(updates.iter().map(|update| put(&store, update))).await;

        assert!(matches!(outcomes[..], [Ok(Accepted::Created(Some(_))), Err(_), Ok(Accepted::Created(Some(_)))]));
        assert!(contents(&store).await.iter().all(|kind| kind.len() == 2), "{:#?}", contents(&store).await);
    }

    #[tokio::test]
    async fn more_updates_than_one_statement_takes_are_all_answered() {
        let store = shop().await;
        let updates: Vec<_> =
            (0..2 * AT_ONCE + 1).map(|number| update("one", &format!("pay_{number}"), Status::Pending, 1)).collect();

        let outcomes = join_all(updates.iter().map(|update| put(&store, update))).await;

        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Accepted::Created(Some(_))))));
        assert!(contents(&store).await.iter().all(|kind| kind.len() == updates.len()));
    }
}
