//! A broker of one's own that may be frozen and starved. `TEST_SERVICES_DIR` is the folder of a service set; its
//! `rabbitmq/ctl` is rabbitmqctl for that node and `rabbitmq/pid` the node's process id.

use std::path::PathBuf;

use tokio::process::Command;

pub struct Node {
    folder: PathBuf,
    pid: String,
}

impl Node {
    pub fn own() -> Self {
        let folder =
            std::env::var("TEST_SERVICES_DIR").expect("TEST_SERVICES_DIR must name a service set of one's own");
        let folder = PathBuf::from(folder).join("rabbitmq");
        let pid = std::fs::read_to_string(folder.join("pid")).expect("the node wrote its process id");
        Self { folder, pid: pid.trim().to_owned() }
    }

    pub async fn freeze(&self) -> Frozen<'_> {
        self.signal("-STOP").await;
        Frozen(self)
    }

    async fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid]).status().await.expect("kill runs");
        assert!(status.success());
    }

    pub async fn ctl(&self, arguments: &[&str]) {
        let output = Command::new(self.folder.join("ctl")).args(arguments).output().await.expect("ctl runs");
        assert!(output.status.success(), "ctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// For what is cleaned up.
    pub fn ctl_now(&self, arguments: &[&str]) {
        let output = std::process::Command::new(self.folder.join("ctl")).args(arguments).output();
        match output {
            Ok(output) if output.status.success() => {}
            failed => eprintln!("ctl {arguments:?}: {failed:?}"),
        }
    }

    pub async fn raise_alarm(&self) {
        self.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await;
    }

    pub async fn clear_alarm(&self) {
        self.ctl(&["set_vm_memory_high_watermark", "0.6"]).await;
    }
}

/// Thaws the broker also when a test fails in between.
pub struct Frozen<'a>(&'a Node);

impl Frozen<'_> {
    pub async fn thaw(self) {
        self.0.signal("-CONT").await;
        std::mem::forget(self);
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").args(["-CONT", &self.0.pid]).status();
    }
}
