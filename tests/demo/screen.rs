//! What people see: lines that stay, and on a terminal one line of progress that is rewritten.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines of progress where they cannot be rewritten.
const PLAIN_INTERVAL: Duration = Duration::from_secs(2);

pub struct Screen {
    terminal: bool,
    colours: bool,
    started: Instant,
    shown: Mutex<Option<Instant>>,
}

impl Screen {
    pub fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { terminal, colours, started: Instant::now(), shown: Mutex::new(None) }
    }

    /// A line that stays, with the seconds since the start.
    pub fn line(&self, text: &str) {
        self.write(&format!("{:5.1} s  {text}\n", self.started.elapsed().as_secs_f64()));
    }

    /// Text as it is.
    pub fn plain(&self, text: &str) {
        self.write(text);
    }

    /// The result, green or red where colours are wanted.
    pub fn verdict(&self, kept: bool, text: &str) {
        let colour = if kept { 32 } else { 31 };
        if self.colours {
            self.write(&format!("\x1b[{colour}m{text}\x1b[0m\n"));
        } else {
            self.write(&format!("{text}\n"));
        }
    }

    /// Progress: rewritten in place on a terminal, else a line every few seconds.
    pub fn progress(&self, text: &str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let due = shown.is_none_or(|at| at.elapsed() >= PLAIN_INTERVAL);
        if self.terminal {
            put(&format!("\r\x1b[K         {text}"));
        } else if due {
            put(&format!("{:5.1} s  {text}\n", self.started.elapsed().as_secs_f64()));
        }
        if due {
            *shown = Some(Instant::now());
        }
    }

    fn write(&self, text: &str) {
        let _order = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if self.terminal {
            put("\r\x1b[K");
        }
        put(text);
    }
}

/// A reader that went away ends nothing: the exit code still tells.
fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
