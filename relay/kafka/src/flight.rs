//! The rows that librdkafka holds, so that each is answered whatever happens to its delivery report: dropping a
//! producer may lose reports, and with them everything that only they would have carried.

use outbox_core::{Millis, Outgoing};

use crate::gate::LOOSE_ROWS;

/// One row between `send` and its delivery report.
pub(crate) struct InFlight {
    pub outgoing: Outgoing,
    /// Index of its topic at the sender.
    pub topic: usize,
    pub bytes: usize,
    pub since: Millis,
    /// Nothing else of its topic is in flight before its report: a failure is then its own.
    pub alone: bool,
}

/// What one topic has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub rows: usize,
    pub bytes: usize,
    pub alone: bool,
    /// Rows of the topic wait, so the sender wants to hear when they may go.
    pub watched: bool,
    /// Of the row that is offered: the producer has no record in its partition yet.
    pub fresh: bool,
}

#[derive(Default)]
pub(crate) struct Flight {
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    loads: Vec<Load>,
    /// By topic and partition: whether the broker has confirmed a record with a key of the swift producer there. One
    /// without a key goes beside others, and may be confirmed before the first one with a key is.
    known: Vec<Vec<bool>>,
    /// librdkafka's queue was full, so the sender wants to hear of any report.
    pub full: bool,
}

impl Flight {
    pub fn load(&self, topic: usize) -> Load {
        self.loads.get(topic).copied().unwrap_or_default()
    }

    pub fn watch(&mut self, topic: usize, watched: bool) {
        self.load_mut(topic).watched = watched;
    }

    /// Takes a row in and gives the number under which it comes back.
    pub fn board(&mut self, row: InFlight) -> usize {
        let load = self.load_mut(row.topic);
        load.rows += 1;
        load.bytes += row.bytes;
        load.alone |= row.alone;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(row);
                slot
            }
            None => {
                self.slots.push(Some(row));
                self.slots.len() - 1
            }
        }
    }

    /// Whether the broker knows the producer in this partition.
    pub fn knows(&self, topic: usize, partition: usize) -> bool {
        self.known.get(topic).and_then(|known| known.get(partition)).copied().unwrap_or(false)
    }

    fn learn(&mut self, topic: usize, partition: usize) {
        if self.known.len() <= topic {
            self.known.resize(topic + 1, Vec::new());
        }
        let known = &mut self.known[topic];
        if known.len() <= partition {
            known.resize(partition + 1, false);
        }
        known[partition] = true;
    }

    /// Gives a row back, and whether the sender waits for this. `written` is the partition of one that was confirmed.
    pub fn land(&mut self, slot: usize, written: Option<usize>) -> Option<(InFlight, bool)> {
        let row = self.slots.get_mut(slot)?.take()?;
        if let Some(partition) = written
            && !row.alone
            && row.outgoing.row.ordering_key.is_some()
            && !self.knows(row.topic, partition)
        {
            self.learn(row.topic, partition);
        }
        self.free.push(slot);
        let load = self.load_mut(row.topic);
        load.rows -= 1;
        load.bytes -= row.bytes;
        load.alone &= !row.alone;
        let awaited = load.watched && load.rows <= LOOSE_ROWS;
        let told = row.alone || awaited || self.full;
        Some((row, told))
    }

    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    pub fn oldest(&self) -> Option<&InFlight> {
        self.slots.iter().flatten().min_by_key(|row| row.since)
    }

    pub fn drain(&mut self) -> Vec<InFlight> {
        self.free.clear();
        self.loads.clear();
        self.slots.drain(..).flatten().collect()
    }

    fn load_mut(&mut self, topic: usize) -> &mut Load {
        if self.loads.len() <= topic {
            self.loads.resize(topic + 1, Load::default());
        }
        &mut self.loads[topic]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outbox_core::{Address, Headers, Row, RowId, Sink, Ticket, Timestamp, TxId};
    use tokio::sync::mpsc;

    use super::*;

    fn row(key: Option<&str>, alone: bool) -> InFlight {
        let row = Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key: "row".to_owned(),
            topic: "t".into(),
            ordering_key: key.map(Into::into),
            payload: None,
            content_type: "text/plain".into(),
            headers: Headers::default(),
            created_at: Timestamp(0),
            available_at: None,
            attempts: 0,
            held_since: None,
        };
        let address = Address { sink: Sink::Kafka, destination: "t".to_owned(), routing_key: String::new() };
        let ticket = Ticket::new(1, 1, mpsc::unbounded_channel().0);
        let outgoing = Outgoing { row: Arc::new(row), address: Arc::new(address), lease_until: Millis(0), ticket };
        InFlight { outgoing, topic: 0, bytes: 1, since: Millis(0), alone }
    }

    #[test]
    fn only_a_confirmed_row_with_a_key_makes_a_partition_known() {
        let mut flight = Flight::default();
        for (key, alone, written) in [(None, false, Some(2)), (Some("k"), true, Some(2)), (Some("k"), false, None)] {
            let slot = flight.board(row(key, alone));
            flight.land(slot, written);
            assert!(!flight.knows(0, 2), "{key:?} {alone} {written:?}");
        }
        let slot = flight.board(row(Some("k"), false));
        flight.land(slot, Some(2));
        assert!(flight.knows(0, 2) && !flight.knows(0, 1) && !flight.knows(1, 2));
    }
}
