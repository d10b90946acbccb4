//! Any text as the configuration file: a configuration, or problems that are named.

#![no_main]
#![allow(dead_code, unused_imports, reason = "the daemon's modules are taken as they are")]

#[path = "../../../relay/daemon/src"]
mod daemon {
    pub mod config;
    pub mod logging;
}

use daemon::{config, logging};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: String| {
    let sources = config::Sources { file: Some(("relay.toml".to_owned(), text)), ..config::Sources::default() };
    if let Err(problems) = config::for_relay(&sources) {
        assert!(!problems.to_string().is_empty());
    }
    drop(config::for_database(&sources));
});
