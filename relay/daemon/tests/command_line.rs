//! The binary as an operator meets it where no service is needed: output, messages and exit codes.

use std::process::{Command, Output, Stdio};

/// Nothing listens on this port: a connection is refused at once.
const AWAY: &str = "postgres://app:hunter2@127.0.0.1:1/shop";

fn relay(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-relay"));
    command.args(arguments).env_clear().envs(environment.iter().copied()).stdin(Stdio::null());
    command.output().expect("the binary starts")
}

fn texts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_wrong_command_line_is_2_and_help_is_0() {
    let (code, _, error) = texts(&relay(&["frob"], &[]));
    assert_eq!(code, 2, "{error}");
    let (code, help, error) = texts(&relay(&["--help"], &[]));
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(help.contains("Exit codes:") && help.contains("OUTBOX__SECTION__KEY"), "{help}");
}

#[test]
fn a_bad_configuration_is_78_and_shows_all_its_problems() {
    let environment = [("DATABASE_URL", AWAY), ("OUTBOX__LEASE__TTL_MS", "10"), ("OUTBOX__LEASE__TTL_SS", "1")];
    for command in [&["run"][..], &["check"], &["status"], &["config"]] {
        let (code, out, error) = texts(&relay(command, &environment));
        assert_eq!((code, out.as_str()), (78, ""), "{command:?}: {error}");
        assert!(error.contains("lease.ttl_ms ($OUTBOX__LEASE__TTL_MS): must be a whole number, from 500"), "{error}");
        assert!(error.contains("OUTBOX__LEASE__TTL_SS: unknown key; did you mean OUTBOX__LEASE__TTL_MS?"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_database_that_is_away_is_69_for_commands_that_run_once() {
    for command in [&["status"][..], &["migrate"], &["parked", "list"], &["parked", "retry", "1", "--yes"]] {
        let (code, out, error) = texts(&relay(command, &[("DATABASE_URL", AWAY)]));
        assert_eq!((code, out.as_str()), (69, ""), "{command:?}: {error}");
        assert!(error.contains("is PostgreSQL up") && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn the_configuration_is_shown_without_secrets() {
    let environment = [("DATABASE_URL", AWAY), ("OUTBOX__RABBITMQ__URL", "amqp://guest:hunter2@localhost")];
    let (code, text, error) = texts(&relay(&["config"], &environment));
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(
        text.contains("url = \"postgres://app:***@127.0.0.1:1/shop\"") && text.contains("# $DATABASE_URL"),
        "{text}"
    );
    assert!(text.contains("# $OUTBOX__RABBITMQ__URL") && !text.contains("hunter2"), "{text}");
    let (code, text, _) = texts(&relay(&["config", "--output", "json"], &environment));
    let document: serde_json::Value = serde_json::from_str(&text).expect("one JSON document");
    assert_eq!((code, document["lease"]["ttl_ms"].as_u64()), (0, Some(10_000)));
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_stop_while_the_database_is_away_is_clean() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_outbox-relay"))
        .args(["run", "--admin-listen", "127.0.0.1:0"])
        .env_clear()
        .envs([("DATABASE_URL", AWAY), ("AMQP_URL", "amqp://guest:hunter2@127.0.0.1:1")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut error = std::io::BufReader::new(child.stderr.take().expect("standard error is a pipe"));
    let mut seen = String::new();
    while !seen.contains("the database is away") {
        assert_ne!(std::io::BufRead::read_line(&mut error, &mut seen).expect("lines are UTF-8"), 0, "{seen}");
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    std::io::Read::read_to_string(&mut error, &mut seen).expect("lines are UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{seen}");
    assert!(seen.contains("admin endpoint listening") && !seen.contains("hunter2"), "{seen}");
}

#[test]
fn a_drain_gives_up_also_while_the_database_is_away() {
    let environment = [("DATABASE_URL", AWAY), ("AMQP_URL", "amqp://guest@127.0.0.1:1")];
    let arguments = ["run", "--drain", "--drain-timeout", "1", "--admin-listen", "off"];
    let (code, _, error) = texts(&relay(&arguments, &environment));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("not drained within 1 s"), "{error}");
}
