//! A fault proxy before Kafka.
//!
//! Kafka tells its clients where to connect, so a proxy on any port would be used for the first
//! question only. The test broker therefore has a few listeners that advertise a port where
//! nobody listens until a proxy of this module does. Each serves one test at a time.

use std::ops::Deref;

use anyhow::Result;

use crate::proxy::Proxy;
use crate::{services, wait};

/// A proxy on a port that the broker advertises; use it like a [`Proxy`].
pub struct KafkaProxy {
    proxy: Proxy,
}

impl KafkaProxy {
    /// Waits until one of the advertised ports is free and listens there.
    ///
    /// # Errors
    /// When `TEST_KAFKA_FAULT_PORTS` is not set, or other tests hold all ports for too long.
    pub async fn start() -> Result<Self> {
        let pairs = services::kafka_fault_ports()?;
        let proxy = wait::until("a free port of TEST_KAFKA_FAULT_PORTS", wait::SOON * 4, || async {
            for (listens, advertised) in &pairs {
                if let Ok(proxy) = Proxy::start_on(*advertised, *listens).await {
                    return Ok(Some(proxy));
                }
            }
            Ok(None)
        })
        .await?;
        Ok(Self { proxy })
    }

    /// The address to hand to the relay.
    #[must_use]
    pub fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.proxy.port())
    }
}

impl Deref for KafkaProxy {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.proxy
    }
}
