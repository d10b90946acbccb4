//! `outbox-try-consumer`: the test kit for consumers in any language.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outbox_client::Message;
use outbox_client::testkit::{Command, Plan, try_out};

/// Tries out a consumer: is the work of one message done once, whatever happens to its deliveries?
///
/// One run of the command is one delivery. It finds MESSAGE_ID and DATABASE_URL in its environment and the body on
/// its standard input, does the work, commits, and ends with 0 for what it would acknowledge. It is run twice, twice
/// at once, out of order, with another body under the same id, beside another consumer, and killed before and after
/// each statement that it sends to the database.
///
/// Exit codes: 0 everything held, 1 something broke, 2 wrong arguments or no database.
#[derive(Parser)]
#[command(
    name = "outbox-try-consumer",
    version,
    after_help = "Example:\n  outbox-try-consumer --database-url postgres://app@127.0.0.1/test \\\n    \
                  --effects 'SELECT count(*) FROM sent_email WHERE message_id = $1' \\\n    \
                  --id 'order:{n}:paid' --body '{\"order\": {n}}' -- python3 handle_one.py"
)]
struct Arguments {
    /// A database for tests, as a URL; what the consumer does there stays there.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// A query for the number of effects of the message with the id $1.
    #[arg(long, value_name = "SQL", required_unless_present = "outside")]
    effects: Option<String>,
    /// A shell command that prints the number of effects of the message MESSAGE_ID outside the database.
    #[arg(long, value_name = "SHELL")]
    outside: Option<String>,
    /// Another consumer of the same messages, as a shell command; its effects are counted with those of COMMAND. Without
    /// it, two consumers are not tried.
    #[arg(long, value_name = "SHELL")]
    other: Option<String>,
    /// A statement that forgets the message with the id $1, as the inbox's retention does. Without it that is not tried.
    #[arg(long, value_name = "SQL")]
    forget: Option<String>,
    /// The messages' ids; {n} is a number that no other message has.
    #[arg(long, default_value = "try:{n}")]
    id: String,
    /// The messages' bodies.
    #[arg(long, default_value = "{\"n\": {n}}")]
    body: String,
    /// Double deliveries at once.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The longest that one delivery may take, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// The consumer's command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Runs on one database must not meet each other's messages.
    let run = u64::from(fastrand::u32(..));
    let (id, body) = (arguments.id, arguments.body);
    let message = move |number: u64| {
        let number = (run * 1_000_000 + number).to_string();
        Message { id: id.replace("{n}", &number), body: body.replace("{n}", &number).into_bytes() }
    };
    let plan = Plan {
        database_url: arguments.database_url,
        effects: arguments.effects,
        forget: arguments.forget,
        rounds: arguments.rounds,
        patience: Duration::from_secs(arguments.patience),
        message: Box::new(message),
    };
    let other = arguments.other.map(|line| Box::new(Command::shell(&line)));
    let subject = Command { words: arguments.command, other, outside: arguments.outside };
    let told = |finding: &outbox_client::testkit::Finding| match &finding.broken {
        None => eprintln!("held    {}", finding.property),
        Some(broken) => eprintln!("BROKEN  {}\n        {broken}", finding.property),
    };
    match try_out(&subject, &plan, told).await {
        Ok(findings) if findings.iter().all(|finding| finding.broken.is_none()) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("outbox-try-consumer: {error}");
            ExitCode::from(2)
        }
    }
}
