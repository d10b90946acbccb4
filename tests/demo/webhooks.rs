//! The real webhook deliveries that the application replays.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

/// One delivery as a provider posts it.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: String,
    pub event: String,
    pub repository: Option<String>,
    pub payload: String,
}

#[derive(Deserialize)]
struct Line {
    delivery: String,
    event: String,
    repository: Option<String>,
    payload: Value,
}

/// Reads the compressed file, one JSON object a line.
pub async fn read(path: &Path) -> Result<Vec<Delivery>> {
    let output = Command::new("gzip").arg("-dc").arg(path).output().await.context("running gzip")?;
    ensure!(output.status.success(), "gzip -dc {} failed", path.display());
    let text = String::from_utf8(output.stdout).context("the deliveries are UTF-8")?;
    let delivery = |line| {
        let Line { delivery: id, event, repository, payload } = serde_json::from_str(line)?;
        Ok(Delivery { id, event, repository, payload: payload.to_string() })
    };
    text.lines().map(delivery).collect()
}
