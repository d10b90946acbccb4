//! Queues that take messages and confirm none, as a quorum queue without a majority does. Their rows are found out
//! within a few time-outs, however many rows and queues there are.

use std::sync::Arc;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use outbox_core::{Address, Link, Outcome, Publisher, Row};
use outbox_rabbitmq::RabbitmqOptions;

use crate::kit::{Broker, Rig, address, row, short, unique, url};
use crate::node::Node;

/// Queues whose processes are suspended. They go with the test, also where it fails; a suspended one cannot be deleted.
struct SilentQueues {
    node: Node,
    prefix: String,
    count: usize,
}

impl SilentQueues {
    /// Each gets what goes to the exchange under its own name.
    async fn new(broker: &Broker, exchange: &str, kind: &str, count: usize) -> Self {
        let queues = Self { node: Node::own(), prefix: unique("silent"), count };
        let mut table = FieldTable::default();
        table.insert(short("x-queue-type"), AMQPValue::LongString(kind.into()));
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        for name in queues.names() {
            broker.channel.queue_declare(short(&name), options, table.clone()).await.expect("the queue is declared");
            broker.bind(&name, exchange, &name).await;
        }
        let script = queues.script("ok = sys:suspend(amqqueue:get_pid(Queue))");
        queues.node.ctl(&["eval", &script]).await;
        queues
    }

    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|number| format!("{}-{number}", self.prefix))
    }

    fn script(&self, each: &str) -> String {
        format!(
            "[{each} || Queue <- rabbit_amqqueue:list(), \
             string:prefix(element(4, amqqueue:get_name(Queue)), <<\"{}-\">>) =/= nomatch], ok.",
            self.prefix
        )
    }
}

impl Drop for SilentQueues {
    fn drop(&mut self) {
        let script = self.script(
            "begin ok = sys:resume(amqqueue:get_pid(Queue)), \
             rabbit_amqqueue:delete(Queue, false, false, <<\"test\">>) end",
        );
        self.node.ctl_now(&["eval", &script]);
    }
}

/// All rows in one window, and short time-outs.
fn one_channel(options: &mut RabbitmqOptions) {
    options.channels = 1;
    options.confirm_timeout_ms = 1_000;
}

/// Hands over the rows again and again, as the core does, until the address of each is known to answer nothing. After
/// how many times.
async fn rounds(rig: &mut Rig, mut rows: Vec<(Arc<Row>, Arc<Address>)>) -> usize {
    let mut rounds = 0;
    while !rows.is_empty() {
        rounds += 1;
        assert!(rounds <= 10, "{} rows are still tried", rows.len());
        rig.link(Link::is_up).await;
        for (row, to) in &rows {
            rig.publish(row, to);
        }
        let answers = rig.answers(rows.len()).await;
        rows.retain(|(row, _)| match &answers[&row.id.seq] {
            Outcome::AddressAway { .. } => false,
            Outcome::Unknown { .. } | Outcome::NotSent => true,
            other => panic!("row {}: {other:?}", row.id.seq),
        });
    }
    rounds
}

/// On one thread, so that the writer finds all rows at once and its window is full of them. RabbitMQ's flow control
/// then reads nothing more from the connection and answers no other question: nobody can tell whose fault it is.
#[tokio::test]
async fn a_window_full_of_rows_to_one_silent_queue_does_not_hide_it() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    broker.queue(&exchange, "good", &[]).await;
    let silent = SilentQueues::new(&broker, &exchange, "quorum", 1).await;
    let mut rig = Rig::up(&url(), one_channel).await;
    // The first row to an exchange goes alone; this one is it.
    assert_eq!(rig.one(row(0, "before"), &address(&exchange, "good")).await, Outcome::Confirmed);
    let to = Arc::new(address(&exchange, &silent.names().next().expect("one")));
    let rows = (1..=600).map(|seq| (Arc::new(row(seq, &format!("row-{seq}"))), Arc::clone(&to))).collect();
    let rounds = rounds(&mut rig, rows).await;
    assert!(rounds <= 4, "{rounds} rounds");
    assert_eq!(rig.one(row(0, "after"), &address(&exchange, "good")).await, Outcome::Confirmed);
    rig.publisher.stop(1_000).await;
}

/// The first row to an exchange goes alone. Were it so after each time-out again, each would find one queue.
#[tokio::test]
async fn many_silent_queues_are_found_together() {
    const QUEUES: usize = 24;
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let silent = SilentQueues::new(&broker, &exchange, "classic", QUEUES).await;
    let mut rig = Rig::up(&url(), one_channel).await;
    let names: Vec<Arc<Address>> = silent.names().map(|name| Arc::new(address(&exchange, &name))).collect();
    let rows = (1..=240).zip(names.iter().cycle());
    let rows = rows.map(|(seq, to)| (Arc::new(row(seq, &format!("row-{seq}"))), Arc::clone(to))).collect();
    let rounds = rounds(&mut rig, rows).await;
    assert!(rounds <= 4, "{rounds} rounds for {QUEUES} queues");
    rig.publisher.stop(1_000).await;
}
