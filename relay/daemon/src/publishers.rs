//! The seam to the broker adapters: a publisher for each configured broker.

use std::sync::Arc;

use outbox_core::{KeyOrder, Observer, Publisher};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_rabbitmq::{RabbitmqConfig, RabbitmqOptions, RabbitmqPublisher};
use secrecy::ExposeSecret as _;

use crate::config::{Brokers, OnPark, Settings};
use crate::exit::{Exit, Failure, Outcome};

/// Starts one publisher a broker. They connect by themselves and wait for brokers that are away.
pub fn start(brokers: &Brokers, settings: &Settings, observer: &Arc<dyn Observer>) -> Outcome<Vec<Arc<dyn Publisher>>> {
    let mut publishers: Vec<Arc<dyn Publisher>> = Vec::new();
    if let Some(rabbitmq) = &brokers.rabbitmq {
        let mut options = RabbitmqOptions::new(rabbitmq.url.expose_secret());
        options.confirm_timeout_ms = settings.confirm_timeout_ms;
        options.pipelined = rabbitmq.order == KeyOrder::Pipelined;
        options.window_max = options.window_max.min(settings.in_flight_max);
        let config = RabbitmqConfig::new(options).map_err(|error| Failure::new(Exit::Configuration, error))?;
        publishers.push(RabbitmqPublisher::start(config, observer.clone()));
    }
    if let Some(kafka) = &brokers.kafka {
        let properties = kafka.properties.iter();
        let config = KafkaConfig {
            brokers: kafka.brokers.clone(),
            properties: properties.map(|(name, value)| (name.clone(), value.expose_secret().to_owned())).collect(),
            confirm_timeout_ms: settings.confirm_timeout_ms,
            in_flight_max: settings.in_flight_max,
            strict: settings.on_park == OnPark::BlockKey,
        };
        let publisher = KafkaPublisher::start(config, observer.clone());
        publishers.push(publisher.map_err(|error| Failure::new(Exit::Configuration, error))?);
    }
    Ok(publishers)
}
