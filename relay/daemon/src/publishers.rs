//! The seam to the broker adapters: a publisher for each configured broker.

use std::sync::Arc;

use outbox_core::{Observer, Publisher};
use outbox_kafka::KafkaPublisher;
use outbox_rabbitmq::RabbitmqPublisher;

use crate::config::Brokers;
use crate::exit::{Exit, Failure, Outcome};

/// Starts one publisher a broker. They connect by themselves and wait for brokers that are away.
pub fn start(brokers: &Brokers, observer: &Arc<dyn Observer>) -> Outcome<Vec<Arc<dyn Publisher>>> {
    let mut publishers: Vec<Arc<dyn Publisher>> = Vec::new();
    if let Some(rabbitmq) = &brokers.rabbitmq {
        publishers.push(RabbitmqPublisher::start(rabbitmq.clone(), observer.clone()));
    }
    if let Some(kafka) = &brokers.kafka {
        let publisher = KafkaPublisher::start(kafka.clone(), observer.clone());
        publishers.push(publisher.map_err(|error| Failure::new(Exit::Configuration, error))?);
    }
    Ok(publishers)
}
