//! The end of every certificate file that a relay is configured with is in its metrics, and follows the file. No
//! service is needed: nothing here is ever dialled with success.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::certificates::Authority;
use outbox_tests::files::Files;
use outbox_tests::metrics::{self, Samples};
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait::{self, SOON};

/// The relay looks every ten seconds, and waits five for a file.
const LOOKED: Duration = Duration::from_secs(60);
const ENDS: &str = "outbox_certificate_not_after_timestamp_seconds";

/// The first second of these years.
const YEARS: [(i32, f64); 7] = [
    (2031, 1_924_992_000.0),
    (2032, 1_956_528_000.0),
    (2033, 1_988_150_400.0),
    (2034, 2_019_686_400.0),
    (2035, 2_051_222_400.0),
    (2036, 2_082_758_400.0),
    (2060, 2_840_140_800.0),
];

fn of(year: i32) -> f64 {
    YEARS.iter().find(|(known, _)| *known == year).map_or(f64::NAN, |(_, seconds)| *seconds)
}

/// Certificates that end at the beginning of these years, in the place of what was there.
fn write(files: &Files, name: &str, years: &[i32]) -> Result<()> {
    let authority = Authority::new("authority")?;
    let issued = years.iter().map(|year| Ok(authority.client_of_years("x", 2020, *year)?.certificate));
    files.write(name, &issued.collect::<Result<String>>()?).map(|_| ())
}

fn launch(folder: &Files) -> Result<Launch> {
    let tls = format!("sslmode=verify-full&sslrootcert={}&sslcert={}", folder.path("p-ca")?, folder.path("p-client")?);
    let config = format!(
        "[kafka.properties]\n\"security.protocol\" = \"ssl\"\n\"ssl.ca.location\" = \"{}\"\n\
         \"ssl.certificate.location\" = \"{}\"\n[[route]]\nmatch = \"*\"\nsink = \"kafka\"\n",
        folder.path("k-ca")?,
        folder.path("k-client")?
    );
    let keys = format!("certfile={}&keyfile=/nonexistent", folder.path("r-client")?);
    Ok(Launch::run()
        .database(&format!("postgres://relay@127.0.0.1:1/shop?{tls}&sslkey=/nonexistent"))
        .amqp(&format!("amqps://127.0.0.1:1?{keys}"))
        .env("OUTBOX__RABBITMQ__CA_FILE", folder.path("r-ca")?)
        .kafka("127.0.0.1:1")
        .config(&config))
}

fn end(samples: &Samples, peer: &str, certificate: &str) -> Option<f64> {
    samples.value(ENDS, &[("peer", peer), ("certificate", certificate)])
}

/// Waits until the file's end is known to be in this year; `None`: until it is not known.
async fn until(relay: &Relay, peer: &str, certificate: &str, year: Option<i32>) -> Result<()> {
    let holds = || async {
        let found = end(&relay.metrics().await?, peer, certificate).context("the series is gone")?;
        Ok(year.map_or(found.is_nan(), |year| found == of(year)))
    };
    wait::until_true(&format!("{peer} {certificate} to end in {year:?}"), LOOKED, holds).await
}

#[tokio::test]
async fn the_end_of_every_certificate_file_is_known_and_follows_the_file() -> Result<()> {
    let folder = Files::new("certificates")?;
    let files = [
        ("p-ca", "postgres", "ca", [2031, 2060].as_slice(), 2031),
        ("p-client", "postgres", "client", &[2032], 2032),
        ("r-ca", "rabbitmq", "ca", &[2060, 2033, 2036], 2033),
        ("r-client", "rabbitmq", "client", &[2034], 2034),
        ("k-ca", "kafka", "ca", &[2035], 2035),
        ("k-client", "kafka", "client", &[2036], 2036),
    ];
    for (name, _, _, years, _) in &files {
        write(&folder, name, years)?;
    }
    let mut relay = launch(&folder)?.start()?;
    for (_, peer, certificate, _, year) in &files {
        until(&relay, peer, certificate, Some(*year)).await?;
    }

    // A rotation shows without a restart, and only where it was.
    write(&folder, "p-client", &[2060])?;
    until(&relay, "postgres", "client", Some(2060)).await?;
    assert_eq!(end(&relay.metrics().await?, "rabbitmq", "ca"), Some(of(2033)));
    for (name, ..) in &files {
        write(&folder, name, &[2060])?;
    }
    for (_, peer, certificate, ..) in &files {
        until(&relay, peer, certificate, Some(2060)).await?;
    }

    // What cannot be read is not known, whatever it was before, and the log says which file, once.
    std::fs::remove_file(folder.folder().join("r-client"))?;
    until(&relay, "rabbitmq", "client", None).await?;
    folder.write("p-ca", "no certificate")?;
    until(&relay, "postgres", "ca", None).await?;
    let gone = format!("rabbitmq.certificate_file '{}' cannot be read: No such file", folder.path("r-client")?);
    assert_eq!(relay.log().matches(&gone).count(), 1, "{}", relay.log());
    relay.wait_log("has no certificate in PEM form", SOON).await?;
    write(&folder, "r-client", &[2031])?;
    until(&relay, "rabbitmq", "client", Some(2031)).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// A file system that hangs, here a pipe that nobody writes to, makes its own file unknown and nothing else.
#[tokio::test]
async fn a_certificate_file_that_hangs_holds_up_nobody() -> Result<()> {
    let folder = Files::new("certificates")?;
    for name in ["p-ca", "p-client", "r-ca", "r-client", "k-ca", "k-client"] {
        write(&folder, name, &[2031])?;
    }
    let mut relay = launch(&folder)?.start()?;
    until(&relay, "rabbitmq", "ca", Some(2031)).await?;
    pipe(&folder.folder().join("r-ca"))?;
    until(&relay, "rabbitmq", "ca", None).await?;
    write(&folder, "p-ca", &[2032])?;
    until(&relay, "postgres", "ca", Some(2032)).await?;
    let lives = metrics::get(relay.admin().await?, "/livez").await?.status == 200;
    assert!(lives && relay.log().contains("no answer for 5 s"), "{}", relay.log());

    // Whoever opened the pipe is let go by a writer; the file that is there by then counts.
    let held = folder.folder().join("held");
    std::fs::rename(folder.folder().join("r-ca"), &held)?;
    write(&folder, "r-ca", &[2033])?;
    std::fs::OpenOptions::new().write(true).open(&held)?;
    until(&relay, "rabbitmq", "ca", Some(2033)).await?;
    pipe(&folder.folder().join("p-client"))?;
    until(&relay, "postgres", "client", None).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0), "a look that hangs holds up no stop");
    Ok(())
}

fn pipe(path: &Path) -> Result<()> {
    std::fs::remove_file(path)?;
    anyhow::ensure!(Command::new("mkfifo").arg(path).status()?.success(), "mkfifo {}", path.display());
    Ok(())
}
