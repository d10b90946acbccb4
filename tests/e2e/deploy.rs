//! What the deployment relies on: every metric that the dashboard and the alerts ask for is one of a running relay.
//! That their expressions parse and that alerts fire is checked by `tests/chart`, which needs no relay.
//! What systemd is told by a relay that it started. And that the image's root is all that the relay needs.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::certificates::Authority;
use outbox_tests::database::Database;
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Launch, binary};
use outbox_tests::services::{target_dir, workspace_root};
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use tokio::net::UnixDatagram;
use tokio::process::Command;

const ROWS: usize = 1_000;

/// Names of our metrics in a text of PromQL: each selector there has braces, which `tests/chart` sees to.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let before_braces = text.split('{').map(|part| part.rsplit(|letter| !is_name(letter)).next().unwrap_or_default());
    before_braces.filter(|name| name.starts_with("outbox_") || name.starts_with("process_")).map(String::from).collect()
}

/// The metrics that a shipped file uses.
fn used_by(file: &str) -> Result<BTreeSet<String>> {
    let path = workspace_root().join("charts/outbox-relay/files").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(metrics_in(&text))
}

#[test]
fn names_are_found_in_expressions() {
    let text = r#"sum by (le) (rate(outbox_a_bucket{x="{"}[5m])) / outbox_b{} > bool process_c{j=~"$job"} or up{}"#;
    let expected = ["outbox_a_bucket", "outbox_b", "process_c"];
    assert_eq!(metrics_in(text), BTreeSet::from(expected.map(String::from)));
}

#[tokio::test]
async fn a_relay_under_load_has_every_metric_of_dashboard_and_alerts() -> Result<()> {
    let (dashboard, alerts) = (used_by("dashboard.json")?, used_by("alerts.yaml")?);
    assert!(dashboard.len() > 25 && alerts.len() > 8, "{} and {} metrics", dashboard.len(), alerts.len());

    let database = Database::migrated().await?;
    let client = database.client().await?;
    let rabbit = Rabbit::connect().await?;
    let (exchange, queue) = (rabbit.unique("deploy"), rabbit.unique("deploy"));
    rabbit.exchange_with_queue(&exchange, &queue).await?;
    client.batch_execute("CREATE TABLE jobs (id bigint PRIMARY KEY, taken_at timestamptz)").await?;
    // Certificates have metrics where they are configured: here of a Kafka that is away and gets no row.
    let authorities = target_dir().join(format!("deploy-{}.pem", uuid::Uuid::new_v4().simple()));
    std::fs::write(&authorities, Authority::new("authority")?.pem())?;
    let config = format!(
        "[kafka.properties]\n\"security.protocol\" = \"ssl\"\n\"ssl.ca.location\" = \"{}\"\n\
         [[route]]\nmatch = \"away.*\"\nsink = \"kafka\"\n[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\n\
         [[source]]\nname = \"jobs\"\ntable = \"public.jobs\"\nmessage_id = \"{{id}}\"\ntopic = \"t\"\n\
         body = [\"id\"]\nmark_column = \"taken_at\"\n",
        authorities.display()
    );
    let relay = Launch::run()
        .database(database.url())
        .amqp(rabbit.url())
        .kafka("127.0.0.1:1")
        .env("OUTBOX__RABBITMQ__EXCHANGE", &exchange)
        .config(&config)
        .start()?;
    for n in 0..ROWS {
        Row::new(&format!("load-{n}"), "t").key(&format!("k{}", n % 50)).text("{}").insert(&client).await?;
    }
    // One that is parked, so that its counter moves too.
    Row::new("bad", "t").headers(serde_json::json!({"id": "mine"})).text("{}").insert(&client).await?;
    wait::until_true("all rows to be published and the state to be sampled with the parked one", SOON * 2, || async {
        let now = relay.metrics().await?;
        Ok(now.sum("outbox_published_messages_total", &[("sink", "rabbitmq"), ("destination", &exchange)])
            == ROWS as f64
            && now.sum("outbox_parked_messages_total", &[("reason", "reserved_header")]) == 1.0
            && now.value("outbox_held_messages", &[("state", "parked")]) == Some(1.0))
    })
    .await?;

    let samples = relay.metrics().await?;
    std::fs::remove_file(&authorities)?;
    let names = samples.names();
    let missing: Vec<&String> = dashboard.union(&alerts).filter(|name| !names.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "a running relay has no {missing:?}");
    Ok(())
}

/// What a service manager hears until it hears `word`.
async fn hear(manager: &UnixDatagram, word: &str) -> Result<()> {
    let hearing = async {
        let mut buffer = [0; 256];
        loop {
            let length = manager.recv(&mut buffer).await?;
            if std::str::from_utf8(&buffer[..length])?.lines().any(|line| line == word) {
                return anyhow::Ok(());
            }
        }
    };
    wait::bounded(&format!("the service manager to hear {word}"), SOON, hearing).await?
}

#[tokio::test]
async fn systemd_hears_of_start_life_and_stop_also_while_the_database_is_away() -> Result<()> {
    let socket = std::env::temp_dir().join(format!("outbox-notify-{}", uuid::Uuid::new_v4()));
    let manager = UnixDatagram::bind(&socket)?;
    let mut relay = Launch::run()
        .database("postgres://nobody@127.0.0.1:9/nothing")
        .amqp("amqp://nobody@127.0.0.1:9")
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "600000")
        .start()?;
    hear(&manager, "READY=1").await?;
    hear(&manager, "WATCHDOG=1").await?;
    // A frozen process says nothing: what was on its way is heard first, then silence.
    relay.sigstop()?;
    let mut buffer = [0; 256];
    while tokio::time::timeout(Duration::from_secs(2), manager.recv(&mut buffer)).await.is_ok() {}
    relay.sigcont()?;
    hear(&manager, "WATCHDOG=1").await?;
    relay.sigterm()?;
    hear(&manager, "STOPPING=1").await?;
    assert_eq!(relay.wait_exit(SOON).await?.code(), Some(0));
    std::fs::remove_file(&socket)?;
    Ok(())
}

/// The image's root as the Dockerfile makes it, and a program that runs the relay in it: the root mounted read-only,
/// a user without rights, as a container's engine does it. Removed when dropped.
struct ImageRoot(PathBuf);

impl ImageRoot {
    async fn assemble() -> Result<Self> {
        let folder = target_dir().join(format!("image-{}", uuid::Uuid::new_v4()));
        let root = Self(folder);
        let script = workspace_root().join("packaging/rootfs.sh");
        let made = Command::new("sh").arg(script).arg(binary()).arg(root.0.join("root")).output().await?;
        anyhow::ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let enter = format!(
            "#!/bin/sh\nexec unshare --user --map-root-user --mount sh -c '\n\
             root={}/root\nmount --bind \"$root\" \"$root\"\nmount --rbind /proc \"$root/proc\"\n\
             mount -o remount,bind,ro \"$root\"\n\
             exec unshare --user --map-user=65532 --map-group=65532 --root=\"$root\" --wd=/ \\\n\
             /usr/local/bin/outbox-relay \"$@\"' sh \"$@\"\n",
            root.0.display()
        );
        std::fs::write(root.program(), enter)?;
        std::fs::set_permissions(root.program(), std::fs::Permissions::from_mode(0o755))?;
        Ok(root)
    }

    fn program(&self) -> PathBuf {
        self.0.join("enter")
    }
}

impl Drop for ImageRoot {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn the_images_root_relays_a_row_read_only_and_without_rights() -> Result<()> {
    let image = ImageRoot::assemble().await?;
    let database = Database::migrated().await?;
    let client = database.client().await?;
    let rabbit = Rabbit::connect().await?;
    let (exchange, queue) = (rabbit.unique("image"), rabbit.unique("image"));
    rabbit.exchange_with_queue(&exchange, &queue).await?;
    Row::new("from-the-image", "t").text("{}").insert(&client).await?;
    let mut relay = Launch::run()
        .binary(image.program())
        .database(database.url())
        .amqp(rabbit.url())
        .env("OUTBOX__RABBITMQ__EXCHANGE", &exchange)
        .start()?;
    let received = rabbit.consume(&queue, 1, SOON).await?;
    assert_eq!(received[0].message_id.as_deref(), Some("from-the-image"));
    relay.wait_ready(SOON).await?;

    let proc = PathBuf::from(format!("/proc/{}", relay.pid()));
    let user = std::fs::read_to_string(proc.join("uid_map"))?;
    assert!(user.trim_start().starts_with("65532 "), "{user}");
    let status = std::fs::read_to_string(proc.join("status"))?;
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let mounts = std::fs::read_to_string(proc.join("mountinfo"))?;
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).context("no root")?;
    assert!(root.split(' ').nth(5).is_some_and(|options| options.split(',').any(|option| option == "ro")), "{root}");
    relay.sigterm()?;
    assert_eq!(relay.wait_exit(SOON).await?.code(), Some(0));
    Ok(())
}
