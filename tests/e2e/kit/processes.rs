use std::time::Duration;

use anyhow::Result;
use outbox_tests::relay::Launch;
use outbox_tests::wait;

/// A stand-in that needs nothing built: the shell, with a script in the relay's place.
fn script(text: &str) -> Launch {
    Launch::new(["-c", text]).binary("/bin/sh")
}

#[tokio::test]
async fn output_and_exit_code_are_captured_apart() -> Result<()> {
    let finished = script("echo data; echo talk >&2; exit 78").finish(wait::SOON).await?;
    assert_eq!(finished.code, Some(78));
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("data\n", "talk\n"));
    Ok(())
}

#[tokio::test]
async fn a_line_is_found_before_and_after_it_was_asked_for() -> Result<()> {
    let relay = script("echo 'admin endpoint listening addr=127.0.0.1:9' >&2; sleep 0.2; echo late >&2; exec sleep 60")
        .start()?;
    assert_eq!(relay.admin().await?.port(), 9);
    assert_eq!(relay.wait_log("late", wait::SOON).await?, "late");
    assert!(relay.admin().await.is_ok());
    let error = relay.wait_log("never", Duration::from_millis(100)).await.unwrap_err();
    assert!(error.to_string().contains("never"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn the_end_of_the_process_ends_the_wait_for_a_line() -> Result<()> {
    let relay = script("echo other >&2").start()?;
    let error = relay.wait_log("never", wait::SOON).await.unwrap_err();
    assert!(error.to_string().contains("ended without"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn signals_reach_the_process() -> Result<()> {
    let trapped = "trap 'exit 7' TERM; echo ready >&2; while :; do sleep 0.05; done";
    let mut relay = script(trapped).start()?;
    relay.wait_log("ready", wait::SOON).await?;
    relay.sigstop()?;
    relay.sigterm()?;
    let alive = || async { Ok(std::fs::metadata(format!("/proc/{}", relay.pid())).is_ok()) };
    wait::holds("a frozen process stays", Duration::from_millis(200), alive).await?;
    relay.sigcont()?;
    assert_eq!(relay.wait_exit(wait::SOON).await?.code(), Some(7));
    assert!(relay.sigterm().is_err());

    let mut relay = script(trapped).start()?;
    relay.wait_log("ready", wait::SOON).await?;
    assert!(relay.is_running()?);
    relay.kill9().await?;
    assert!(!relay.is_running()?);
    Ok(())
}

#[tokio::test]
async fn the_configuration_file_exists_as_long_as_the_process() -> Result<()> {
    let mut relay = script("cat \"$2\"; exec sleep 60").arg("name").config("[lease]\nttl_ms = 500\n").start()?;
    let written = || async { Ok(relay.output().contains("ttl_ms = 500")) };
    // The shell sees: -c SCRIPT name --config FILE.
    wait::until_true("the file's text", wait::SOON, written).await?;
    relay.kill9().await
}
