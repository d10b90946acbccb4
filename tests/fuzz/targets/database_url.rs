//! Any text as the address of the database, and of RabbitMQ: taken or refused, and never repeated in a message.

#![no_main]
#![allow(dead_code, unused_imports, reason = "the daemon's modules are taken as they are")]

#[path = "../../../relay/daemon/src"]
mod daemon {
    pub mod config;
    pub mod logging;
}

use arbitrary::Arbitrary;
use daemon::{config, logging};
use libfuzzer_sys::fuzz_target;

const PASSWORD: &str = "hunter2hunter2";

#[derive(Arbitrary, Debug)]
enum Shape {
    Anything,
    /// With a password where one belongs.
    Url,
    Pairs,
}

#[derive(Arbitrary, Debug)]
struct Input {
    shape: Shape,
    database: String,
    amqp: String,
}

fuzz_target!(|input: Input| {
    let user = |text: &str| !text.contains(['@', '/', ':', '?', '#', '[', ']', '%']);
    let database = match input.shape {
        Shape::Url => format!("postgres://a:{PASSWORD}@{}", input.database),
        Shape::Pairs if !input.database.contains(['\'', '\\', '=']) => {
            format!("password={PASSWORD} host={}", input.database)
        }
        _ => input.database,
    };
    let amqp = if user(&input.amqp) { format!("amqp://a:{PASSWORD}@{}", input.amqp) } else { input.amqp };
    let environment =
        [("DATABASE_URL", database), ("AMQP_URL", amqp)].map(|(name, value)| (name.to_owned(), value)).to_vec();
    let sources = config::Sources { environment, ..config::Sources::default() };
    match config::for_relay(&sources) {
        Ok(relay) => assert!(!format!("{relay:?}").contains(PASSWORD)),
        Err(problems) => {
            let said = problems.to_string();
            assert!(!said.is_empty() && !said.contains(PASSWORD), "{said}");
        }
    }
});
