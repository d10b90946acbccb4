//! CPU time and memory of process trees, read from /proc. Works for servers on this machine only.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context, Result};

/// The kernel tells times in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

struct Stat {
    parent: u32,
    state: char,
    own: f64,
    /// Of children that have ended and were waited for, and of theirs.
    ended: f64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let seconds = |index: usize| fields.get(index)?.parse::<f64>().ok().map(|ticks| ticks / TICKS_PER_SECOND);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
        own: seconds(11)? + seconds(12)?,
        ended: seconds(13)? + seconds(14)?,
    })
}

pub fn parent(pid: u32) -> Result<u32> {
    stat(pid).map(|stat| stat.parent).with_context(|| format!("no process {pid} on this machine"))
}

/// CPU seconds of one process; also of one that has ended and was not waited for yet.
pub fn cpu_seconds(pid: u32) -> f64 {
    stat(pid).map_or(0.0, |stat| stat.own)
}

pub fn has_ended(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| stat.state == 'Z')
}

pub fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id())
}

/// A process and everything below it.
#[derive(Clone, Copy)]
pub struct Tree(pub u32);

impl Tree {
    /// Ended descendants included.
    pub fn cpu_seconds(self) -> f64 {
        self.pids().into_iter().filter_map(stat).map(|stat| stat.own + stat.ended).sum()
    }

    /// Private memory of all, and the largest share of what they have in common, in bytes.
    pub fn memory_bytes(self) -> u64 {
        let (mut private, mut common) = (0, 0);
        for pid in self.pids() {
            let status = Status::read(pid);
            private += status.bytes("RssAnon");
            common = common.max(status.bytes("RssShmem") + status.bytes("RssFile"));
        }
        private + common
    }

    fn pids(self) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            if let Some(stat) = stat(pid) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        let mut pids = vec![self.0];
        let mut next = 0;
        while let Some(pid) = pids.get(next).copied() {
            pids.extend(children.remove(&pid).unwrap_or_default());
            next += 1;
        }
        pids
    }
}

/// `/proc/PID/status`; empty when the process is gone.
pub struct Status(String);

impl Status {
    pub fn read(pid: u32) -> Self {
        Self(fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
    }

    pub fn bytes(&self, field: &str) -> u64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kibibytes.unwrap_or(0) * 1_024
    }
}

/// The process that listens on a port of this machine, if we may see it.
pub fn listener(port: u16) -> Option<u32> {
    let suffix = format!(":{port:04X}");
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields.get(1)?.ends_with(&suffix) && *fields.get(3)? == "0A";
            listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
        })
    })?;
    let entries = fs::read_dir("/proc").ok()?.flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link.to_str() == Some(&inode))
    })
}
