//! A consumer in any language: one run of a command is one delivery.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;

use crate::error::BoxError;
use crate::inbox::Message;
use crate::testkit::Subject;

/// Told of an error, at most so much of what the command said.
const SAID_MAX: usize = 2_000;

/// A program that treats one message and ends. It gets `DATABASE_URL` and `MESSAGE_ID` in its environment and the body
/// as its standard input; 0 is what it acknowledges. A kill is SIGKILL.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program and its arguments, at least one word.
    pub words: Vec<String>,
}

impl Subject for Command {
    async fn deliver(&self, database_url: &str, message: &Message) -> Result<(), BoxError> {
        let (program, arguments) = self.words.split_first().ok_or("there is no command to run")?;
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .env("DATABASE_URL", database_url)
            .env("MESSAGE_ID", &message.id)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("'{program}' cannot be started: {error}"))?;
        let mut stdin = child.stdin.take().ok_or("the command has no standard input")?;
        // A program that ends without reading is judged by its exit code.
        let _ = stdin.write_all(&message.body).await;
        drop(stdin);
        let output = child.wait_with_output().await?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().chars().take(SAID_MAX).collect();
        Err(format!("{}: {said}", output.status).into())
    }
}
