//! The heart of the relay: what a row, a lane, a lease and a message are, what happens to a row after
//! each answer of a broker, and the traits behind which databases and brokers stand.
//!
//! There is no database, no broker and no wall clock in here. Everything that decides (`decide`, `breaker`,
//! `backoff`, `lane`) is pure and takes the time as an argument; `lane_worker` and `relay` drive it.

mod address;
mod backoff;
mod breaker;
mod clock;
mod column_template;
mod decide;
mod fresh;
mod headers;
mod in_flight;
mod intake;
mod lane;
mod lane_worker;
mod loopback;
mod mark;
mod mutant;
mod observer;
mod outcome;
mod publisher;
mod reason;
mod relay;
mod route;
mod row;
mod settings;
mod shared;
mod sinks;
mod source;
mod template;

pub use address::{Address, Sink};
pub use backoff::{Backoff, BackoffPolicy};
pub use breaker::Breakers;
pub use clock::{Clock, Millis};
pub use column_template::{ColumnPart, ColumnTemplate};
pub use decide::{History, RetryPolicy, Verdict, Verdicted, decide};
pub use fresh::Fresh;
pub use headers::{HeaderValue, Headers};
pub use intake::{Intake, Refusal, Take, Taken};
pub use lane::{Answered, Gate, HoldOrder, Lane, Mapped, PageFacts, Publication};
pub use loopback::is_loopback;
pub use mutant::{crash_point, mutant};
pub use observer::{NoObserver, Observer, Peer, Wakeup};
pub use outcome::{Outcome, Scope};
pub use publisher::{Answer, KeyOrder, Link, Outgoing, Publisher, Remark, Run, Ticket};
pub use reason::Reason;
pub use relay::{Finish, Relay};
pub use route::{Allowed, DEFAULT_EXCHANGE, Pattern, Route, RouteError, Routes};
pub use row::{Row, RowId, Timestamp, TxId};
pub use settings::{DrillShares, OnPark, Settings};
pub use shared::{DatabaseLink, Shared};
pub use sinks::Sinks;
pub use source::{
    Acquired, ClaimRequest, Claimed, Content, DrainGoal, Fenced, Heartbeat, HoldEntry, HoldState, Horizon, Lease,
    MarkOrder, Origin, Page, PollRequest, Position, Session, Source, SourceError,
};
pub use template::{RENDERED_BYTES_MAX, RenderError, TEMPLATE_BYTES_MAX, Template, TemplateError};
