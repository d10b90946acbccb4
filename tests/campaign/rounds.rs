//! Batch after batch of faults, judged after each, and everything judged after each round.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::verdict::{self, Breach, Evidence, Window};
use tokio::time::Instant;

use crate::faults;
use crate::options::Options;
use crate::schedule::{Fault, Kind, Schedule};
use crate::stage::{IN_FLIGHT_MAX, Stage};
use crate::summary::Summary;

/// After a round nothing may come for so long before it is judged.
const QUIET: Duration = Duration::from_millis(400);

/// Settling that takes longer is worth a look at what the relays said.
const SLOW_MS: u128 = 10_000;

/// See the module.
pub struct Campaign {
    stage: Stage,
    schedule: Schedule,
    record: PathBuf,
    round: usize,
    windows: Vec<Window>,
    summary: Summary,
    breaches: Vec<Breach>,
}

impl Campaign {
    pub fn new(stage: Stage, schedule: Schedule, record: PathBuf, round: usize) -> Self {
        let (windows, breaches) = (Vec::new(), Vec::new());
        let summary = Summary::new(schedule.mode());
        Self { stage, schedule, record, round: round.max(1), windows, summary, breaches }
    }

    /// Whether every promise was kept.
    pub async fn play(&mut self, options: &Options) -> Result<bool> {
        let end = options.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
        let faults_max =
            options.faults.unwrap_or(if end.is_some() || options.schedule.is_some() { usize::MAX } else { 60 });
        std::fs::write(&self.record, "").with_context(|| format!("writing {}", self.record.display()))?;
        // The relays' first connections are no fault's, but may repeat nothing either.
        self.settle().await?;
        let mut number = 0;
        while self.breaches.is_empty() {
            let over = end.is_some_and(|end| Instant::now() >= end) || self.summary.faults() >= faults_max;
            let Some(batch) = self.schedule.batch(number).filter(|_| !over) else { break };
            self.play_batch(number, &batch).await.with_context(|| format!("in batch {number}"))?;
            number += 1;
            if number.is_multiple_of(self.round) && self.breaches.is_empty() {
                self.judge_round().await?;
            }
        }
        if self.breaches.is_empty() {
            self.judge_round().await?;
        }
        Ok(self.breaches.is_empty())
    }

    async fn play_batch(&mut self, number: usize, batch: &[Fault]) -> Result<()> {
        let mut record = std::fs::OpenOptions::new().append(true).open(&self.record)?;
        for fault in batch {
            println!("{number} {fault}");
            writeln!(record, "{number} {fault}")?;
        }
        let (from_ms, before) = (self.stage.notes.now_ms(), self.stage.interruptions());
        let begun = Instant::now();
        let played = faults::play(&mut self.stage, batch).await?;
        let played_ms = begun.elapsed().as_millis();
        self.settle().await?;
        let settled_ms = begun.elapsed().as_millis() - played_ms;
        println!("{number} took {played_ms} ms and settled in {settled_ms} ms");
        if settled_ms > SLOW_MS {
            self.tell_logs();
        }
        // Promise 5: what was in flight at each interruption of a relay may come again. Lanes change owners, too.
        let clean = batch.iter().all(|fault| fault.kind == Kind::CleanRestart);
        let interruptions = self.stage.relays.len() + self.stage.interruptions() - before;
        let forgiven = played.forgiven_since_ms.map_or(0, |since_ms| self.stage.notes.arrivals_since(since_ms));
        let duplicates_max = if clean { 0 } else { interruptions * IN_FLIGHT_MAX + forgiven };
        self.windows.push(Window { batch: number, from_ms, duplicates_max });
        self.summary.played(batch, &played, Duration::from_millis(u64::try_from(settled_ms)?));
        let (journal, _, arrivals) = self.stage.notes.copy();
        self.breaches.extend(verdict::judge_so_far(&journal, &arrivals));
        Ok(())
    }

    async fn settle(&mut self) -> Result<()> {
        let breaches = self.stage.settle().await?;
        self.breaches.extend(breaches);
        Ok(())
    }

    /// Writers pause, everything lands, everything is judged and forgotten.
    async fn judge_round(&mut self) -> Result<()> {
        let gate = Arc::clone(&self.stage.gate);
        let _silence = gate.write().await;
        self.settle().await?;
        let mut arrivals = 0;
        while arrivals != self.stage.notes.arrivals() {
            arrivals = self.stage.notes.arrivals();
            tokio::time::sleep(QUIET).await;
        }
        let (journal, volatile, arrivals) = self.stage.notes.copy();
        let table = self.stage.table().await?;
        let windows = std::mem::take(&mut self.windows);
        let evidence = Evidence { journal, volatile, table, arrivals, windows };
        let verdict = verdict::judge(&evidence);
        self.summary.judged(&verdict);
        println!("{}", self.summary.line());
        self.breaches.extend(verdict.breaches);
        if self.breaches.is_empty() {
            self.stage.forget().await?;
        }
        Ok(())
    }

    /// Writes down what a breach can be looked into with: arrivals in their order, the journal, the table.
    pub async fn keep_evidence(&mut self) -> Result<()> {
        let (journal, _, arrivals) = self.stage.notes.copy();
        let mut text = String::new();
        for seen in &arrivals {
            let key = seen.arrival.content.key.as_deref().unwrap_or("-");
            writeln!(text, "arrived {} {} {key} redelivered={}", seen.at_ms, seen.arrival.id, seen.redelivered)?;
        }
        for entry in &journal {
            let key = entry.content.key.as_deref().unwrap_or("-");
            writeln!(text, "wrote {} {key} {} {:?}", entry.id, entry.number, entry.outcome)?;
        }
        text += &self.stage.rows().await?;
        let file = self.record.with_extension("evidence");
        std::fs::write(&file, text)?;
        println!("evidence is in {}", file.display());
        Ok(())
    }

    fn tell_logs(&self) {
        for (number, relay) in self.stage.relays.iter().enumerate() {
            println!("--- the end of the log of relay {number} ---\n{}", relay.log());
        }
    }

    /// The result, and what is needed to look into a failure.
    pub fn tell(&self, seed: u64, kept: bool) {
        print!("{}", self.summary.table());
        if !kept {
            println!("seed {seed}; the schedule is in {}", self.record.display());
            self.tell_logs();
            for breach in self.breaches.iter().take(20) {
                println!("broken: {breach}");
            }
            if let Some(first) = self.breaches.iter().min_by_key(|breach| breach.rule) {
                println!("first broken rule: {first}");
            }
        }
        let word = if kept { "every promise kept" } else { "A PROMISE WAS BROKEN" };
        println!("{word}: seed {seed}, {}", self.summary.line());
    }
}
