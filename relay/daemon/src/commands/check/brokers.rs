//! The addresses that routes name. What depends on a row cannot be asked for, and is named.

use std::sync::Arc;

use futures_util::future::join_all;
use outbox_core::{Address, NoObserver, Observer, Publisher, Remark, Route, Routes, Sink};

use super::finding::{
    ADDRESS, ADDRESS_MISSING, ADDRESS_TEMPLATED, ADDRESS_UNASKED, BINDING_UNKNOWN, Finding, SIZE_LIMIT,
    TOPIC_COMPACTED, TOPIC_LIMIT, TOPIC_MIN_INSYNC,
};
use crate::config::Brokers;
use crate::exit::Outcome;
use crate::publishers;

/// Asks for every exchange and topic that routes name.
pub async fn look(brokers: &Brokers, routes: &Routes) -> Outcome<Vec<Finding>> {
    let observer: Arc<dyn Observer> = Arc::new(NoObserver);
    let mut findings = Vec::new();
    for publisher in &publishers::start(brokers, &observer)? {
        let own: Vec<&Route> = routes.as_slice().iter().filter(|route| route.sink == publisher.sink()).collect();
        findings.extend(own.iter().filter_map(|route| templated(route)));
        let addresses: Vec<Address> = own.iter().filter_map(|route| literal(route)).collect();
        for found in join_all(addresses.iter().map(|address| ask(publisher, address))).await {
            findings.extend(found);
        }
        publisher.stop(0).await;
    }
    if let Some(rabbitmq) = &brokers.rabbitmq {
        let bytes = rabbitmq.message_bytes_max();
        findings.push(SIZE_LIMIT.found(format!(
            "RabbitMQ does not tell its max_message_size; the relay goes by {bytes} bytes until it is told otherwise"
        )));
    }
    Ok(findings)
}

fn literal(route: &Route) -> Option<Address> {
    let destination = route.destination.literal()?.to_owned();
    let routing_key = route.routing_key.literal().unwrap_or_default().to_owned();
    // The default exchange leads to the queue named like the routing key.
    let known = !destination.is_empty() || !routing_key.is_empty() || route.sink == Sink::Kafka;
    known.then_some(Address { sink: route.sink, destination, routing_key })
}

fn templated(route: &Route) -> Option<Finding> {
    let template = match (route.destination.literal(), route.sink) {
        (None, _) => route.destination.source(),
        (Some(""), Sink::Rabbitmq) if route.routing_key.literal().is_none() => route.routing_key.source(),
        (Some(_), _) => return None,
    };
    Some(ADDRESS_TEMPLATED.found(format!("{}: {template} is another for each row", route.sink)))
}

async fn ask(publisher: &Arc<dyn Publisher>, address: &Address) -> Vec<Finding> {
    // Where the exchange has a name, nothing is asked about the routing key.
    let exchange = address.sink == Sink::Rabbitmq && !address.destination.is_empty();
    let name = if exchange { format!("exchange '{}'", address.destination) } else { address.to_string() };
    match publisher.probe(address).await {
        Ok(None) => {}
        Ok(Some(missing)) => return vec![ADDRESS_MISSING.found(missing)],
        Err(away) => return vec![ADDRESS_UNASKED.found(format!("{name} could not be asked for: {away}"))],
    }
    let mut findings = vec![ADDRESS.found(format!("{name} exists"))];
    if exchange {
        findings.push(BINDING_UNKNOWN.found(format!("whether a queue is bound to {name} cannot be asked")));
    }
    findings.extend(publisher.remarks(address).await.into_iter().map(|remark| match remark {
        Remark::BytesMax(bytes) => TOPIC_LIMIT.found(format!("{name} takes batches of up to {bytes} bytes")),
        Remark::Compacted => TOPIC_COMPACTED.found(format!("{name} is compacted")),
        Remark::OneConfirms => TOPIC_MIN_INSYNC.found(format!("{name} has min.insync.replicas = 1")),
    }));
    findings
}
