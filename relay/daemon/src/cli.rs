//! The command line. What stands here is a contract: names, defaults and exit codes do not change.
//!
//! No flag reads the environment by itself: `config` lays all sources over each other, and help output so never
//! shows a secret. Deliberately absent until they work: `replay` and `prune`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::config::Sources;
use crate::drill::Drill;
use crate::exit::{Exit, Failure, Outcome};

const AFTER_HELP: &str = "\
Examples:
  export DATABASE_URL=postgres://app@localhost/shop AMQP_URL=amqp://guest:guest@localhost
  outbox-relay migrate                    make or upgrade the tables
  outbox-relay check                      see whether a relay could run here
  outbox-relay run                        publish until told to stop
  outbox-relay run --drain                publish what is there, then exit
  outbox-relay status                     what waits, what is parked, who owns what
  outbox-relay parked retry --topic billing.paid --yes

Environment:
  DATABASE_URL, AMQP_URL, KAFKA_BROKERS   the services
  OTEL_EXPORTER_OTLP_ENDPOINT             where spans go; other variables of OpenTelemetry stand in README.md
  OUTBOX__SECTION__KEY                    any key of the configuration, such as OUTBOX__LEASE__TTL_MS
  CREDENTIALS_DIRECTORY                   set by systemd: files database-url, amqp-url, kafka-properties
  NO_COLOR                                no colours in log lines
  Flags beat the environment, which beats the file, which beats defaults.

Exit codes:
  0   done; for run: stopped as asked, or drained
  1   failed while it ran
  2   the command line makes no sense
  69  a database or broker is away (commands that run once; `run` waits instead)
  78  configuration, credentials, certificates, schema or a source: an operator is needed
  130, 143  a second SIGINT or SIGTERM, or the first one for a command that runs once";

/// Publishes the rows of a transactional outbox in PostgreSQL to RabbitMQ or Kafka.
#[derive(Debug, Parser)]
#[command(name = "outbox-relay", version, about, after_long_help = AFTER_HELP, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub struct Common {
    /// The configuration file (TOML); `config --default` prints one to start from
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// PostgreSQL, as postgres://user@host:port/database; a password is safer in a file or DATABASE_URL
    #[arg(long, global = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// How data is written to standard output
    #[arg(long, global = true, value_enum, value_name = "FORM", default_value_t)]
    pub output: Output,
}

/// The form of data on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make the schemas `outbox` and `inbox`, or bring them up to date; doing it twice is harmless. A source with
    /// mark_add = true gets its column
    Migrate(Migrate),
    /// Publish rows until stopped, or with --drain until everything is sent
    #[command(long_about = RUN_HELP)]
    Run(Run),
    /// See whether a relay could run: server, schema, privileges, sources, exchanges or topics
    Check(Brokers),
    /// Show what waits, since when and why, and which relay owns which lanes
    Status,
    /// Look at rows that were given up, and send them again or drop them
    Parked {
        #[command(subcommand)]
        action: Parked,
    },
    /// Look at rows of sources that cannot become a message, and try them again
    Refused {
        #[command(subcommand)]
        action: Refused,
    },
    /// Print the configuration in effect, secrets hidden
    Config(Config),
    /// Print a completion script for a shell
    Completions { shell: Shell },
    /// Print the manual page
    Man,
}

const RUN_HELP: &str = "\
Publish rows until stopped, or with --drain until everything is sent.

The relay waits for a database or broker that is away. The first SIGTERM or SIGINT stops it cleanly: it claims \
nothing more, waits for what is in flight within shutdown.grace_ms, marks it and gives its lanes back. A second one \
ends it at once; nothing is lost, and what was in flight is published again with the same id.";

#[derive(Debug, Args)]
pub struct Migrate {
    /// Only this schema; a consumer's own database needs only `inbox`
    #[arg(long, value_enum, value_name = "NAME")]
    pub schema: Vec<SchemaName>,
    /// How long a statement may wait for a table that is in use, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub lock_timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaName {
    Outbox,
    Inbox,
}

#[derive(Debug, Args)]
pub struct Brokers {
    /// RabbitMQ, as amqp://user:password@host:port/vhost; a password is safer in a file or AMQP_URL
    #[arg(long, value_name = "URL")]
    pub amqp_url: Option<String>,
    /// Kafka, as host:port,host:port
    #[arg(long, value_name = "HOSTS")]
    pub kafka_brokers: Option<String>,
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub brokers: Brokers,
    /// Where /metrics, /livez and /readyz listen; port 0 picks a free one and logs it; `off`
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// Exit 0 once everything that was committed and due at the start is sent or parked
    #[arg(long)]
    pub drain: bool,
    /// Give a drain up after this many seconds: exit 1 and say what remains
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "drain")]
    pub drain_timeout: u64,
    /// For tests in staging: publish this share of confirmed rows once more, at once (duplicate=1%) or after later
    /// messages (reorder=1%); may be given for both
    #[arg(long, value_name = "WHAT", requires = "not_production")]
    pub drill: Vec<Drill>,
    /// Says that duplicates on purpose harm nobody here
    #[arg(long = "yes-this-is-not-production", requires = "drill")]
    pub not_production: bool,
}

#[derive(Debug, Subcommand)]
pub enum Parked {
    /// List parked rows, the oldest first
    List {
        #[command(flatten)]
        choice: Choice,
        /// At most this many rows
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Show all that is known of rows in the waiting room
    Show {
        /// The rows' numbers
        #[arg(required = true, value_name = "SEQ")]
        seqs: Vec<i64>,
        /// Also show payload and headers, which may hold secrets
        #[arg(long)]
        payload: bool,
    },
    /// Send parked rows again; their attempts start anew
    Retry(Act),
    /// Give rows up for good; they are never sent
    Discard(Act),
}

#[derive(Debug, Subcommand)]
pub enum Refused {
    /// List refused rows
    List {
        /// Of this source
        #[arg(value_name = "SOURCE")]
        source: Option<String>,
        /// At most this many rows
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Try rows again that were mended; those that still cannot become a message are refused again
    #[command(group = clap::ArgGroup::new("rows").required(true).args(["ids", "all"]))]
    Retry {
        /// The source, as the configuration names it
        #[arg(value_name = "SOURCE")]
        source: String,
        /// The rows' ids
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// All refused rows of the source
        #[arg(long)]
        all: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub struct Choice {
    /// The rows' numbers
    #[arg(value_name = "SEQ", conflicts_with = "topic")]
    pub seqs: Vec<i64>,
    /// Rows of this topic
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["seqs", "topic", "all"]))]
pub struct Act {
    #[command(flatten)]
    pub choice: Choice,
    /// All parked rows
    #[arg(long)]
    pub all: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct Config {
    /// Print every key with its meaning and default instead, as a file to start from
    #[arg(long)]
    pub default: bool,
    /// Print what a file may say instead, as a JSON schema for editors and checks
    #[arg(long, conflicts_with = "default")]
    pub schema: bool,
}

impl Cli {
    /// Everything that may hold configuration: this command line, the environment and the file.
    ///
    /// # Errors
    /// A file that cannot be read, or a variable of ours that is not UTF-8.
    pub fn sources(&self) -> Outcome<Sources> {
        let mut flags = Vec::new();
        let mut flag = |key, name, value: Option<&String>| {
            flags.extend(value.map(|value| (key, name, value.clone())));
        };
        flag("database.url", "--database-url", self.common.database_url.as_ref());
        let brokers = match &self.command {
            Command::Run(run) => {
                flag("admin.listen", "--admin-listen", run.admin_listen.as_ref());
                Some(&run.brokers)
            }
            Command::Check(brokers) => Some(brokers),
            Command::Migrate(_)
            | Command::Status
            | Command::Parked { .. }
            | Command::Refused { .. }
            | Command::Config(_)
            | Command::Completions { .. }
            | Command::Man => None,
        };
        if let Some(brokers) = brokers {
            flag("rabbitmq.url", "--amqp-url", brokers.amqp_url.as_ref());
            flag("kafka.brokers", "--kafka-brokers", brokers.kafka_brokers.as_ref());
        }
        let file = match &self.common.config {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Failure::text(Exit::Configuration, format!("cannot read --config {}: {error}", path.display()))
                })?;
                Some((path.display().to_string(), text))
            }
        };
        let credentials_dir = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        Ok(Sources { flags, environment: environment()?, file, credentials_dir })
    }
}

/// The variables that may be ours. Others need not be UTF-8.
fn environment() -> Outcome<Vec<(String, String)>> {
    let mut ours = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| Sources::is_variable(name)) else { continue };
        let value = value
            .into_string()
            .map_err(|_| Failure::text(Exit::Configuration, format!("the variable {name} is not UTF-8")))?;
        ours.push((name.to_owned(), value));
    }
    // Sorted, so that problems come in the same order each time.
    ours.sort();
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound_and_says_what_it_must() {
        Cli::command().debug_assert();
        let help = Cli::command().render_long_help().to_string();
        for word in ["Examples:", "OUTBOX__LEASE__TTL_MS", "69 ", "78 ", "--config", "--output"] {
            assert!(help.contains(word), "{word} is missing in {help}");
        }
        assert!(!help.contains("replay"));
    }

    #[test]
    fn lines_of_the_contract_parse() {
        for line in [
            "outbox-relay migrate --database-url postgres://x",
            "outbox-relay run --config f --amqp-url u --kafka-brokers h --admin-listen 127.0.0.1:0 --drain --drain-timeout 9",
            "outbox-relay run --drill duplicate=1% --yes-this-is-not-production",
            "outbox-relay run --drill duplicate=1% --drill reorder=1% --yes-this-is-not-production",
            "outbox-relay check --output json",
            "outbox-relay status",
            "outbox-relay parked list",
            "outbox-relay parked list --topic t --limit 5",
            "outbox-relay parked show 1 2 --payload",
            "outbox-relay parked retry 1 2 3 --yes",
            "outbox-relay parked discard --topic t -y",
            "outbox-relay refused list",
            "outbox-relay refused list invoices --limit 5",
            "outbox-relay refused retry invoices 17 18 --yes",
            "outbox-relay refused retry invoices --all -y",
            "outbox-relay config --default",
            "outbox-relay completions bash",
            "outbox-relay man",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "outbox-relay",
            "outbox-relay parked retry",
            "outbox-relay parked retry 1 --topic t",
            "outbox-relay parked retry --all --topic t",
            "outbox-relay parked show",
            "outbox-relay refused retry",
            "outbox-relay refused retry invoices",
            "outbox-relay refused retry invoices 17 --all",
            "outbox-relay run --drain-timeout 3",
            "outbox-relay run --drill duplicate=1%",
            "outbox-relay run --yes-this-is-not-production",
            "outbox-relay run --drill swap=1% --yes-this-is-not-production",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn flags_name_the_keys_they_set() {
        let cli = parse("outbox-relay run --database-url d --amqp-url a --admin-listen l").unwrap();
        let flags = cli.sources().unwrap().flags;
        let keys: Vec<(&str, &str)> = flags.iter().map(|(key, flag, _)| (*key, *flag)).collect();
        assert_eq!(
            keys,
            [("database.url", "--database-url"), ("admin.listen", "--admin-listen"), ("rabbitmq.url", "--amqp-url")]
        );
    }
}
