//! An application's plain table as a source: what was committed to it arrives, once as a row of the outbox, and what
//! was rolled back does not.

mod basics;
mod bed;
mod check;
mod faults;
mod refusals;
mod shapes;
