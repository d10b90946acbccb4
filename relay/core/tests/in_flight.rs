//! Many lanes at `in_flight_max`, against a database and a broker in memory, on one thread so that turns repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use outbox_core::{
    Acquired, Address, ClaimRequest, Claimed, Content, DrainGoal, Fenced, Headers, Heartbeat, HoldEntry, Horizon,
    KeyOrder, Lease, Link, MarkOrder, NoObserver, Origin, Outcome, Outgoing, Page, PollRequest, Publisher, Relay,
    Routes, Row, RowId, Session, Settings, Shared, Sink, Sinks, Source, SourceError, Take, Timestamp, TxId,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const LANES: i16 = 16;
const ROWS_A_LANE: i64 = 40;

fn row(seq: i64, ordering_key: Option<Arc<str>>) -> Row {
    Row {
        id: RowId { seq, tx: TxId(1) },
        idempotency_key: format!("row-{seq}"),
        topic: "t".into(),
        ordering_key,
        payload: None,
        content_type: "text/plain".into(),
        headers: Headers::default(),
        created_at: Timestamp(0),
        available_at: None,
        attempts: 0,
        held_since: None,
    }
}

/// A table whose rows are all there from the start, with the lane of each.
struct Memory {
    unsent: Mutex<BTreeMap<i64, i16>>,
    /// Of all rows.
    key: Option<Arc<str>>,
    marks: AtomicUsize,
    left: watch::Sender<usize>,
}

impl Memory {
    fn unsent(&self) -> std::sync::MutexGuard<'_, BTreeMap<i64, i16>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session for Memory {
    async fn lost(&self) -> String {
        std::future::pending().await
    }

    async fn heartbeat(&self, owned: &[Lease]) -> Result<Heartbeat, SourceError> {
        let free = (0..LANES).filter(|lane| owned.iter().all(|lease| lease.lane != *lane)).collect();
        Ok(Heartbeat { kept: owned.to_vec(), relays_alive: 1, free, rank: 0 })
    }

    async fn acquire(&self, wanted: &[(i16, Option<i64>)]) -> Result<Vec<Acquired>, SourceError> {
        let acquired = |wanted: &(i16, Option<i64>)| Lease { lane: wanted.0, epoch: 1 };
        Ok(wanted.iter().map(|wanted| Acquired { lease: acquired(wanted), continuous: false }).collect())
    }

    async fn release(&self, _: &[Lease]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn leave(&self) -> Result<(), SourceError> {
        Ok(())
    }

    async fn last_seq(&self) -> Result<i64, SourceError> {
        Ok(i64::from(LANES) * ROWS_A_LANE)
    }

    async fn horizon(&self) -> Result<Horizon, SourceError> {
        Ok(Horizon { last_seq: i64::from(LANES) * ROWS_A_LANE, xid: 2 })
    }

    async fn poll(&self, _: &PollRequest) -> Result<Vec<i16>, SourceError> {
        Ok(Vec::new())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Page, SourceError> {
        let unsent = self.unsent();
        let asked = unsent.iter().filter(|(seq, lane)| {
            **lane == request.lease.lane && **seq > request.low && !request.exclude.contains(seq)
        });
        let rows: Vec<Claimed> = asked
            .map(|(seq, _)| {
                let (row, ordering_key) = (row(*seq, self.key.clone()), self.key.clone());
                Claimed { id: row.id, origin: Origin::Fresh, ordering_key, content: Content::Row(Arc::new(row)) }
            })
            .collect();
        Ok(Page { rows, whole_to: i64::MAX, snapshot_xmin: 3, now: Timestamp(0) })
    }

    async fn mark(&self, orders: &[MarkOrder]) -> Result<Vec<Lease>, SourceError> {
        self.marks.fetch_add(1, Ordering::SeqCst);
        let mut unsent = self.unsent();
        orders.iter().flat_map(|order| &order.rows).for_each(|row| {
            unsent.remove(&row.seq);
        });
        self.left.send_replace(unsent.len());
        Ok(Vec::new())
    }

    async fn hold(&self, _: Lease, _: &[HoldEntry]) -> Result<Fenced, SourceError> {
        Ok(Fenced::Done)
    }

    async fn recheck(&self, rows: &[(RowId, String)]) -> Result<Vec<RowId>, SourceError> {
        Ok(rows.iter().map(|(id, _)| *id).collect())
    }

    async fn drain_goal(&self) -> Result<DrainGoal, SourceError> {
        std::future::pending().await
    }

    async fn drained(&self, _: &DrainGoal, _: bool) -> Result<bool, SourceError> {
        std::future::pending().await
    }

    async fn prune(&self, _: u64) -> Result<usize, SourceError> {
        Ok(0)
    }

    async fn take(&self, _: usize, _: bool) -> Result<Take, SourceError> {
        Ok(Take::Nothing)
    }

    async fn tidy(&self, _: usize, _: &str) -> Result<Option<String>, SourceError> {
        Ok(None)
    }
}

struct Database(Arc<Memory>);

impl Source for Database {
    type Session = Memory;

    async fn connect(&self) -> Result<Arc<Memory>, SourceError> {
        Ok(Arc::clone(&self.0))
    }
}

/// Confirms when everybody else has had a turn, and counts.
struct Broker {
    link: watch::Sender<Link>,
    published: Mutex<Vec<i64>>,
}

impl Publisher for Broker {
    fn sink(&self) -> Sink {
        Sink::Kafka
    }

    fn order(&self, _: &Address) -> KeyOrder {
        KeyOrder::Strict
    }

    fn publish(&self, outgoing: Outgoing) {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).push(outgoing.row.id.seq);
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            outgoing.ticket.answer(Outcome::Confirmed);
        });
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn probe<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn stop(&self, _: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Relays all rows, and says in how many statements they were marked and in which order they were published.
async fn relay(rows: BTreeMap<i64, i16>, key: Option<Arc<str>>, in_flight_max: usize) -> (usize, Vec<i64>) {
    let all = rows.len();
    let left = watch::Sender::new(all);
    let memory = Arc::new(Memory { unsent: Mutex::new(rows), key, marks: AtomicUsize::new(0), left });
    let broker = Arc::new(Broker { link: watch::Sender::new(Link::Up), published: Mutex::default() });
    let settings = Settings { in_flight_max, ..Settings::default() };
    let sinks = Sinks::new(vec![broker.clone()]);
    let shared = Shared::new(settings, Routes::for_single(Sink::Kafka), sinks, Arc::new(NoObserver));
    let stop = CancellationToken::new();
    let relay = Relay::new(Arc::new(Database(memory.clone())), Arc::new(shared), false).run(stop.clone());
    let relay = tokio::spawn(relay);
    let mut left = memory.left.subscribe();
    let done = tokio::time::timeout(Duration::from_secs(60), left.wait_for(|left| *left == 0)).await;
    assert!(matches!(done, Ok(Ok(_))), "{} of {all} rows are left", memory.unsent().len());
    stop.cancel();
    relay.await.expect("the relay ends");
    let published = broker.published.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(published.len(), all, "each row goes once");
    assert_eq!(BTreeSet::from_iter(published.iter()).len(), all, "each row goes once");
    (memory.marks.load(Ordering::SeqCst), published)
}

/// With fewer permits than lanes that want one, each permit must be used by the lane that got it: a lane that gives it
/// to the next one unused, as that one does too, keeps all of them busy for ever.
#[tokio::test]
async fn a_permit_that_was_waited_for_is_used() {
    for in_flight_max in [1, 2, 15] {
        relay(backlog(ROWS_A_LANE), None, in_flight_max).await;
    }
}

/// The rows of a backlog go about in their order, whichever lane they are in: a lane that got many permits first does
/// not keep them while others wait.
#[tokio::test]
async fn lanes_of_a_backlog_stay_together() {
    let rows_a_lane = 500;
    let (_, published) = relay(backlog(rows_a_lane), None, 64).await;
    let ahead = published.iter().zip(1..).map(|(seq, place)| seq - place).max();
    assert!(ahead < Some(2_000), "a row went {ahead:?} places before its turn");
}

/// So many rows a lane, one lane after the other.
fn backlog(rows_a_lane: i64) -> BTreeMap<i64, i16> {
    let lane = |n: i64| i16::try_from(n % i64::from(LANES)).unwrap_or(0);
    (0..i64::from(LANES) * rows_a_lane).map(|n| (n + 1, lane(n))).collect()
}

/// Rows that are confirmed one after the other, as those of one key are, share marks.
#[tokio::test]
async fn a_trickle_of_rows_shares_marks() {
    let rows: BTreeMap<i64, i16> = (1..=400).map(|seq| (seq, 0)).collect();
    let (marks, _) = relay(rows, Some("k".into()), 2_000).await;
    assert!(marks <= 100, "{marks} statements for 400 rows");
}
