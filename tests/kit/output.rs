//! The output of a process, line by line, kept and waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;

use crate::wait;

/// The lines of one stream; the sender tells how many there are and whether it ended.
pub(crate) struct Output {
    lines: Arc<Mutex<Vec<String>>>,
    progress: watch::Receiver<Progress>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    lines: usize,
    ended: bool,
}

impl Output {
    pub(crate) fn follow(stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (sender, progress) = watch::channel(Progress::default());
        let written = Arc::clone(&lines);
        tokio::spawn(async move {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).await.is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                written.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                sender.send_modify(|progress| progress.lines += 1);
                line.clear();
            }
            sender.send_modify(|progress| progress.ended = true);
        });
        Self { lines, progress }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn text(&self) -> String {
        let lines = self.lock();
        let mut text = lines.join("\n");
        if !lines.is_empty() {
            text.push('\n');
        }
        text
    }

    pub(crate) async fn wait_line(&self, text: &str, within: Duration) -> Result<String> {
        let mut progress = self.progress.clone();
        let mut looked_at = 0;
        let search = async {
            loop {
                let now = *progress.borrow_and_update();
                if let Some(line) = self.lock()[looked_at..].iter().find(|line| line.contains(text)) {
                    return Ok(line.clone());
                }
                looked_at = now.lines;
                if now.ended || progress.changed().await.is_err() {
                    bail!("the process ended without saying {text:?}");
                }
            }
        };
        wait::bounded(&format!("a line with {text:?}"), within, search).await?
    }

    pub(crate) async fn wait_end(&self, within: Duration) -> Result<()> {
        let mut progress = self.progress.clone();
        let end = async { progress.wait_for(|progress| progress.ended).await.map(|_| ()) };
        Ok(wait::bounded("the output's end", within, end).await??)
    }
}
