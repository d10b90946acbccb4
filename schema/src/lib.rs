//! The database schemas of the outbox and the inbox, embedded, and the code that applies them.
//!
//! Guarantees: applying twice is harmless, replicas that apply at the same moment take turns, a file that was changed
//! after it was applied is noticed, every lock wait is bounded, and a schema whose newest part this program does not
//! understand is refused. Deliberately absent: roles (see `roles.sql`), prompts, and any way back.

mod error;
mod files;
mod guards;
mod ledger;
mod migrate;
mod version;

pub use error::MigrateError;
pub use files::{Migration, ROLES_SQL, Schema};
pub use migrate::{Applied, Options, Report, migrate};
pub use version::{Verdict, check_version};
