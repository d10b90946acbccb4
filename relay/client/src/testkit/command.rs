//! A consumer in any language: one run of a command is one delivery.

use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt as _;

use crate::error::BoxError;
use crate::inbox::Message;
use crate::testkit::Subject;

/// Told of an error, at most so much of what the command said.
const SAID_MAX: usize = 2_000;

/// A program that treats one message and ends. It gets `DATABASE_URL` and `MESSAGE_ID` in its environment and the body
/// as its standard input; 0 is what it acknowledges. A kill is SIGKILL.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// The program and its arguments, at least one word.
    pub words: Vec<String>,
    /// Another consumer of the same messages.
    pub other: Option<Box<Command>>,
    /// A shell command that finds `MESSAGE_ID` in its environment and prints the number of effects outside the database.
    pub outside: Option<String>,
}

impl Command {
    /// A line for the shell.
    #[must_use]
    pub fn shell(line: &str) -> Self {
        Self { words: ["sh", "-c", line].map(str::to_owned).to_vec(), ..Self::default() }
    }
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
        succeeded(&child.wait_with_output().await?)
    }

    fn other(&self) -> Option<&Self> {
        self.other.as_deref()
    }

    async fn outside(&self, id: &str) -> Result<Option<i64>, BoxError> {
        let Some(line) = &self.outside else { return Ok(None) };
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", line]).env("MESSAGE_ID", id).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await?;
        succeeded(&output).map_err(|error| format!("the command for effects outside the database failed: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let count = said.trim().parse();
        Ok(Some(count.map_err(|_| format!("the command for effects must print a number, not '{}'", start_of(&said)))?))
    }
}

fn succeeded(output: &Output) -> Result<(), BoxError> {
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", output.status, start_of(&String::from_utf8_lossy(&output.stderr))).into())
}

fn start_of(said: &str) -> String {
    said.trim().chars().take(SAID_MAX).collect()
}
