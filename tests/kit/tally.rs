//! What a run with kills adds up to: the ledger's findings, the relay's bound on duplicates and
//! the consumer's effects, as a table and one verdict.
//!
//! It only judges what it is given. A run in which nothing happened is no proof, so it fails.

use std::fmt::Write as _;

use crate::ledger::Report;

/// The numbers of one run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub report: Report,
    /// How often the relay was killed with SIGKILL.
    pub kills: usize,
    /// Of the kills together: rows that had reached the broker and were not marked sent.
    pub unmarked_at_kills: usize,
    /// The relay's `in_flight_max`.
    pub in_flight_max: usize,
    /// Rows that are still not marked sent at the end.
    pub unmarked: usize,
    /// Different messages whose effect is in the consumer's database.
    pub effects: usize,
    /// Of them those whose effect is there more than once.
    pub effects_twice: usize,
}

impl Tally {
    /// What was promised and not kept, one sentence each; empty when all was kept.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let report = &self.report;
        let mut broken = Vec::new();
        let mut none = |found: usize, what: &str| {
            if found > 0 {
                broken.push(format!("{} {what}", grouped(found)));
            }
        };
        none(report.lost.len(), "committed and never delivered");
        none(report.phantom.len(), "delivered although never committed");
        none(report.altered.len(), "delivered with other content");
        none(report.out_of_order.len(), "delivered out of order");
        none(self.effects_twice, "effects done twice");
        none(self.unmarked, "rows not marked sent at the end");
        let mut must = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        must(report.committed > 0, "nothing was committed, so nothing was shown".to_owned());
        must(
            self.effects == report.delivered,
            format!("{} effects for {} delivered messages", grouped(self.effects), grouped(report.delivered)),
        );
        let duplicates_max = self.kills * self.in_flight_max;
        must(
            report.duplicates <= duplicates_max,
            format!("{} redelivered, at most {duplicates_max} are allowed", grouped(report.duplicates)),
        );
        // Nobody could have marked them after the kill.
        must(
            report.duplicates >= self.unmarked_at_kills,
            format!("{} redelivered, but {} were unmarked", grouped(report.duplicates), self.unmarked_at_kills),
        );
        broken
    }

    /// The numbers under each other, each with what was promised.
    #[must_use]
    pub fn table(&self) -> String {
        let report = &self.report;
        let duplicates = format!("at most {} x {} kills", grouped(self.in_flight_max), self.kills);
        let rows = [
            ("committed", report.committed, ""),
            ("delivered", report.delivered, "as many"),
            ("lost", report.lost.len(), "0"),
            ("phantom", report.phantom.len(), "0"),
            ("altered", report.altered.len(), "0"),
            ("redelivered with the same id", report.duplicates, duplicates.as_str()),
            ("out of order", report.out_of_order.len(), "0"),
            ("effects done", self.effects, "as many as delivered"),
            ("effects done twice", self.effects_twice, "0"),
        ];
        let mut table = format!("{:<30}{:>9}   {}\n", "", "counted", "promised");
        for (name, counted, promised) in rows {
            let line = format!("{name:<30}{:>9}   {promised}", grouped(counted));
            let _ = writeln!(table, "{}", line.trim_end());
        }
        table
    }

    /// The result in one line.
    #[must_use]
    pub fn verdict(&self) -> String {
        let report = &self.report;
        let broken = self.broken();
        let word = if broken.is_empty() { "every promise kept" } else { "A PROMISE WAS BROKEN" };
        let mut line = format!(
            "{word}: {} committed, {} delivered, {} lost, {} phantom, {} redelivered with the same id, \
             {} out of order, {} effects done twice, {} kills",
            grouped(report.committed),
            grouped(report.delivered),
            grouped(report.lost.len()),
            grouped(report.phantom.len()),
            grouped(report.duplicates),
            grouped(report.out_of_order.len()),
            grouped(self.effects_twice),
            self.kills,
        );
        if !broken.is_empty() {
            let _ = write!(line, " ({})", broken.join("; "));
        }
        line
    }
}

/// 1234567 as 1,234,567.
#[must_use]
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
