//! The real `Lane` against a simulated world: a database with late, rolled back and lost transactions, brokers
//! that fail in every way, one or two relays, an operator, crashes of everything. Seeds repeat exactly.
//!
//! `SIMULATION_SEEDS` runs more of them; `SIMULATION_SEED` runs one and tells its story;
//! `SIMULATION_VARIANT` tries one broken rule.

mod broker;
mod calls;
mod checks;
mod claim;
mod db;
mod faults;
mod met;
mod relay;
mod variant;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::met::{EXPECTED, Met};
use crate::variant::Variant;
use crate::world::World;

const SEEDS: u64 = 20_000;
/// A broken rule must show within this many seeds.
const VARIANT_SEEDS: u64 = 20_000;
const THREADS: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The lowest failing seed met, with what broke, and what all runs met together.
fn run_all(seeds: u64, variant: Variant) -> (Option<(u64, String)>, Met) {
    let next = AtomicU64::new(0);
    let work = || {
        let (mut met, mut failed) = (Met::default(), None);
        while failed.is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                break;
            }
            let (result, seen) = World::run(seed, variant);
            met.add(seen);
            if let Err(broken) = result {
                next.store(seeds, Ordering::Relaxed);
                failed = Some((seed, broken));
            }
        }
        (failed, met)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut all = (None, Met::default());
        for worker in workers {
            let (failed, met) = worker.join().expect("a run does not panic");
            all.0 = all.0.into_iter().chain(failed).min();
            all.1.add(met);
        }
        all
    })
}

#[test]
fn every_promise_holds_and_everything_settles() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let (result, met) = World::run(seed, Variant::Correct);
        println!("seed {seed}: {result:?}, met {:?}", met.0);
        result.expect("the promise");
        return;
    }
    let seeds = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let (failed, met) = run_all(seeds, Variant::Correct);
    println!("{seeds} seeds met {:#?}", met.0);
    assert_eq!(failed, None, "run it alone with SIMULATION_SEED");
    let missed: Vec<&str> = EXPECTED.into_iter().filter(|what| !met.0.contains_key(what)).collect();
    assert_eq!(missed, Vec::<&str>::new(), "never met");
}

#[test]
fn every_broken_rule_is_noticed() {
    let mut missed = Vec::new();
    let only = std::env::var("SIMULATION_VARIANT").ok();
    for variant in Variant::BROKEN {
        if only.as_ref().is_some_and(|only| *only != format!("{variant:?}")) {
            continue;
        }
        match run_all(VARIANT_SEEDS, variant).0 {
            Some((seed, broken)) => println!("{variant:?}: seed {seed}: {broken}"),
            None => missed.push(variant),
        }
    }
    assert_eq!(missed, [], "nobody noticed");
}
