//! What a consumer saw: each id once, and each key in order of its first arrivals.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::load::Load;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub messages: u64,
    pub distinct: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    pub foreign: u64,
}

pub struct Checker {
    keys: u32,
    rows: u32,
    arrived: Vec<bool>,
    last: Vec<Option<u32>>,
    seen: Seen,
}

impl Checker {
    pub fn new(load: &Load) -> Self {
        Self {
            keys: load.keys,
            rows: load.rows,
            arrived: vec![false; load.rows as usize],
            last: vec![None; load.keys as usize],
            seen: Seen::default(),
        }
    }

    pub fn see(&mut self, id: Option<&str>) {
        self.seen.messages += 1;
        let Some(row) = id.and_then(Load::row_of).filter(|row| *row < self.rows) else {
            self.seen.foreign += 1;
            return;
        };
        if std::mem::replace(&mut self.arrived[row as usize], true) {
            self.seen.duplicates += 1;
            return;
        }
        self.seen.distinct += 1;
        let last = &mut self.last[(row % self.keys) as usize];
        if last.is_some_and(|last| last > row) {
            self.seen.out_of_order += 1;
        }
        *last = Some(row);
    }

    pub const fn messages(&self) -> u64 {
        self.seen.messages
    }

    pub const fn seen(&self) -> Seen {
        self.seen
    }
}

impl Seen {
    /// Duplicates have no business in a run without faults either.
    pub fn must_be_whole(&self, rows: u32) -> Result<()> {
        let whole = self.distinct == u64::from(rows) && self.messages == self.distinct && self.out_of_order == 0;
        if whole { Ok(()) } else { bail!("the run is void: {rows} rows, and the consumer saw {self:?}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rows: &[u32]) -> Seen {
        let mut checker = Checker::new(&Load::new(4, 2, 1, 1));
        for row in rows {
            checker.see(Some(&Load::id(*row)));
        }
        checker.seen()
    }

    #[test]
    fn a_run_is_whole_only_with_each_row_once_and_in_order() {
        assert!(seen(&[1, 0, 2, 3]).must_be_whole(4).is_ok());
        assert!(seen(&[0, 1, 2]).must_be_whole(4).is_err());
        assert_eq!(seen(&[2, 0, 1, 3]).out_of_order, 1);
        assert_eq!(seen(&[0, 0, 1, 2, 3]).duplicates, 1);
        assert_eq!(seen(&[7]).foreign, 1);
    }
}
