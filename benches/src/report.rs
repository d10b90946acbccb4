//! Results for human eyes: lines on the terminal, and the table in the report.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::result::{Drained, Idled};

const BEGIN: &str = "<!-- results -->\n";
const END: &str = "<!-- end of results -->\n";

pub fn show(drained: &Drained) {
    let Drained { name, messages_per_second: rate, bare_messages_per_second: bare, ratio, .. } = drained;
    let (cpu, statements) = (&drained.cpu_seconds_per_million, &drained.statements);
    say(&format!("{name}: {rate:.0}/s, bare {bare:.0}/s, ratio {:.0} %", ratio * 100.0));
    say(&format!(
        "  CPU-s/M: relay {:.1}, PostgreSQL {:.1}, broker {:.1}; bare {:.1}, broker {:.1}",
        cpu.relay,
        cpu.database,
        cpu.broker,
        drained.bare_cpu_seconds_per_million,
        drained.bare_broker_cpu_seconds_per_million
    ));
    say(&format!(
        "  peak memory: relay {:.1} MB, PostgreSQL {:.0} MB",
        drained.relay_memory_peak_mb, drained.database_memory_peak_mb
    ));
    say(&format!(
        "  {:.0} claims of {:.0} rows in {:.1} ms, {:.0} marks in {:.1} ms",
        statements.claims,
        statements.rows_per_claim,
        statements.claim_ms_mean,
        statements.marks,
        statements.mark_ms_mean
    ));
    say(&format!("  {:?}", drained.seen));
}

pub fn show_idle(idled: &Idled) {
    say(&format!(
        "{}: relay {:.2} % of a core and {:.1} MB; PostgreSQL {:.2} %, without the relay {:.2} %",
        idled.name,
        idled.relay_percent_of_a_core,
        idled.relay_memory_mb,
        idled.database_percent_of_a_core,
        idled.database_alone_percent_of_a_core
    ));
}

/// Nobody is left to tell when standard output is closed.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Replaces the table between the marks of `benches/README.md`.
pub fn write() -> Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("README.md");
    let text = std::fs::read_to_string(&path)?;
    let (before, rest) = text.split_once(BEGIN).context("the report has no place for results")?;
    let (_, after) = rest.split_once(END).context("the report has no end of results")?;
    let (mut drains, mut idles) = (Vec::new(), Vec::new());
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder.join("results"))?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "json")) {
        let json = std::fs::read_to_string(file)?;
        match serde_json::from_str::<Drained>(&json) {
            Ok(drained) => drains.push(drained),
            Err(_) => idles.push(serde_json::from_str(&json).with_context(|| format!("{}", file.display()))?),
        }
    }
    std::fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table(&drains, &idles)))?;
    Ok(())
}

fn table(drains: &[Drained], idles: &[Idled]) -> String {
    let mut text = String::from(
        "\n| run | messages/s | bare | ratio | relay CPU-s/M | PostgreSQL | broker | bare CPU-s/M | relay peak MB | \
         PostgreSQL peak MB | commit |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for drained in drains {
        let cpu = &drained.cpu_seconds_per_million;
        text.push_str(&format!(
            "| {} | {:.0} | {:.0} | **{:.0} %** | **{:.1}** | {:.1} | {:.1} | {:.1} | **{:.0}** | {:.0} | {} |\n",
            drained.name,
            drained.messages_per_second,
            drained.bare_messages_per_second,
            drained.ratio * 100.0,
            cpu.relay,
            cpu.database,
            cpu.broker,
            drained.bare_cpu_seconds_per_million,
            drained.relay_memory_peak_mb,
            drained.database_memory_peak_mb,
            drained.origin.commit
        ));
    }
    text.push_str(
        "\n| run | relay % of a core | PostgreSQL % of a core | without relay | relay MB | commit |\n\
         |---|--:|--:|--:|--:|---|\n",
    );
    for idled in idles {
        text.push_str(&format!(
            "| {} | **{:.2}** | {:.2} | {:.2} | {:.0} | {} |\n",
            idled.name,
            idled.relay_percent_of_a_core,
            idled.database_percent_of_a_core,
            idled.database_alone_percent_of_a_core,
            idled.relay_memory_mb,
            idled.origin.commit
        ));
    }
    text.push('\n');
    text
}
