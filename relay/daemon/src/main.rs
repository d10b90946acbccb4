mod config;
mod logging;
fn main() {}
