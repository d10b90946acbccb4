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
    /// By topic and partition: whether the broker has confirmed a record of the swift producer there.
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
        if let Some(partition) = written.filter(|partition| !row.alone && !self.knows(row.topic, *partition)) {
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
