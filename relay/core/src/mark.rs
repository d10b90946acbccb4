//! mark: one task for all lanes writes what was confirmed since the last time, in one statement.
//!
//! A mark that certainly failed is repeated; one whose outcome is unknown ends the session, and its rows are
//! read again under the next one. Nothing is published again because of a mark.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::mutant::crash_point;
use crate::row::RowId;
use crate::shared::Shared;
use crate::source::{Lease, MarkOrder, Session, SourceError};

/// Rows in one statement at most; more wait for the next.
const MARK_ROWS_MAX: usize = 2_000;
/// Before a mark that the database asked to repeat, in milliseconds.
const AGAIN_MS: u64 = 20;
/// After a mark of few rows the next one waits, in milliseconds, so that a trickle does not cost a commit a row.
const REST_MS: u64 = 5;
const FEW_ROWS: usize = 64;

/// What became of rows handed over for marking.
pub(crate) enum Marked {
    Done(Vec<RowId>),
    /// The lane has another owner.
    Stale,
}

struct Order {
    lease: Lease,
    rows: Vec<RowId>,
    reply: mpsc::UnboundedSender<Marked>,
}

/// The way to the marking task. Bounded by the rows in flight.
#[derive(Clone)]
pub(crate) struct MarkHandle(mpsc::UnboundedSender<Order>);

impl MarkHandle {
    pub(crate) fn send(&self, lease: Lease, rows: Vec<RowId>, reply: mpsc::UnboundedSender<Marked>) -> Result<(), ()> {
        self.0.send(Order { lease, rows, reply }).map_err(|_| ())
    }
}

/// The marking task of one session.
pub(crate) struct Marker<S> {
    session: Arc<S>,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
}

impl<S: Session> Marker<S> {
    pub(crate) fn new(session: Arc<S>, shared: Arc<Shared>) -> (MarkHandle, Self) {
        let (sender, orders) = mpsc::unbounded_channel();
        (MarkHandle(sender), Self { session, shared, orders })
    }

    /// Marks until every lane is gone, or the session is.
    pub(crate) async fn run(mut self) -> Result<(), SourceError> {
        while let Some(first) = self.orders.recv().await {
            let mut rows = first.rows.len();
            let mut orders = vec![first];
            while rows < MARK_ROWS_MAX
                && let Ok(next) = self.orders.try_recv()
            {
                rows += next.rows.len();
                orders.push(next);
            }
            self.run_once(orders, rows).await?;
            // Where rows wait for `in_flight_max`, they wait for marks.
            if rows < FEW_ROWS && self.shared.in_flight.any_free() {
                tokio::time::sleep(Duration::from_millis(REST_MS)).await;
            }
        }
        Ok(())
    }

    async fn run_once(&self, orders: Vec<Order>, rows: usize) -> Result<(), SourceError> {
        let merged = merge(&orders);
        let started = self.shared.clock.now();
        crash_point("before_mark");
        let stale = loop {
            match self.session.mark(&merged).await {
                Ok(stale) => break stale,
                Err(SourceError::Again(detail)) => {
                    tracing::debug!(error = %detail, "mark repeated");
                    tokio::time::sleep(Duration::from_millis(AGAIN_MS)).await;
                }
                Err(error) => return Err(error),
            }
        };
        crash_point("after_mark");
        let took_ms = self.shared.clock.now().since(started);
        self.shared.observer.marked(rows, took_ms as f64 / 1_000.0);
        if !stale.is_empty() {
            self.shared.observer.fenced(stale.len());
        }
        for order in orders {
            let reply = if stale.contains(&order.lease) { Marked::Stale } else { Marked::Done(order.rows) };
            // A lane that ended meanwhile has forgotten the rows already.
            let _ = order.reply.send(reply);
        }
        Ok(())
    }
}

/// One entry a lease; two epochs of a lane stay apart.
fn merge(orders: &[Order]) -> Vec<MarkOrder> {
    let mut merged: HashMap<Lease, Vec<RowId>> = HashMap::new();
    for order in orders {
        merged.entry(order.lease).or_default().extend(&order.rows);
    }
    let mut merged: Vec<MarkOrder> = merged.into_iter().map(|(lease, rows)| MarkOrder { lease, rows }).collect();
    merged.sort_by_key(|order| (order.lease.lane, order.lease.epoch));
    merged
}
