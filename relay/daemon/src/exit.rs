//! Exit codes, which scripts and service managers depend on, and the errors that carry one.

use std::fmt;
use std::process::ExitCode;

use crate::config::ConfigurationError;

/// How the process ends. The numbers are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// Something went wrong while it ran.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// A one-shot command found a database or broker away; trying again may help.
    Unavailable = 69,
    /// Configuration, credentials or schema: trying again will not help.
    Configuration = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error together with the exit code that it leads to.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub error: anyhow::Error,
}

/// What commands return.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// An error that ends with a given code.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into() }
    }

    /// A text that ends with a given code.
    pub fn text(exit: Exit, text: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self { exit, error: anyhow::Error::msg(text) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl From<ConfigurationError> for Failure {
    fn from(error: ConfigurationError) -> Self {
        Self::new(Exit::Configuration, error)
    }
}

/// Output that cannot be written is a failure, but a reader that has read enough (`| head`) is none.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let exit = if error.kind() == std::io::ErrorKind::BrokenPipe { Exit::Done } else { Exit::Failed };
        Self { exit, error: anyhow::Error::new(error).context("cannot write the output") }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: Exit::Failed, error }
    }
}
