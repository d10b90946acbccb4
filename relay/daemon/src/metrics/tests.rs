//! What a scraper sees.

use outbox_core::{Address, Observer as _, Peer, Reason, Sink, Wakeup};

use super::*;

fn metrics() -> Metrics {
    Metrics::new(&[Sink::Rabbitmq, Sink::Kafka], &[(Sink::Rabbitmq, "events".to_owned())], &["invoices"], 30_000)
        .unwrap()
}

fn address(sink: Sink, destination: &str) -> Address {
    Address { sink, destination: destination.to_owned(), routing_key: String::new() }
}

#[test]
fn every_series_begins_at_zero_under_its_name() {
    let metrics = metrics();
    let text = metrics.text().unwrap();
    for series in [
        "outbox_claimed_messages_total 0",
        "outbox_published_messages_total{destination=\"events\",sink=\"rabbitmq\"} 0",
        "outbox_published_messages_total{destination=\"other\",sink=\"kafka\"} 0",
        "outbox_published_bytes_total 0",
        "outbox_publish_failures_total{reason=\"no_topic\",sink=\"kafka\"} 0",
        "outbox_publish_unknown_total 0",
        "outbox_returned_messages_total 0",
        "outbox_parked_messages_total{reason=\"size\"} 0",
        "outbox_marks_fenced_total 0",
        "outbox_pruned_messages_total 0",
        "outbox_publish_duration_seconds_count 0",
        "outbox_delivery_latency_seconds_count 0",
        "outbox_claim_duration_seconds_count 0",
        "outbox_mark_duration_seconds_count 0",
        "outbox_batch_messages_count 0",
        "outbox_sink_connected{sink=\"kafka\"} 0",
        "outbox_sink_blocked{sink=\"rabbitmq\"} 0",
        "outbox_breaker_open 0",
        "outbox_lanes_owned 0",
        "outbox_last_publish_timestamp_seconds 0",
        "outbox_listener_connected 0",
        "outbox_reconnects_total{peer=\"postgres\"} 0",
        "outbox_wakeups_total{source=\"notify\"} 0",
        "outbox_db_pool_connections{state=\"idle\"} 0",
        "outbox_build_info{version=",
        "outbox_stats_last_success_timestamp_seconds 0",
        "process_resident_memory_bytes ",
    ] {
        assert!(text.contains(&format!("\n{series}")), "{series} is missing in\n{text}");
    }
    metrics.state.sample(StateSample { oldest_transaction_age_seconds: Some(0.0), ..StateSample::default() });
    let text = metrics.text().unwrap();
    for series in [
        "outbox_pending_messages 0",
        "outbox_oldest_pending_age_seconds 0",
        "outbox_held_messages{state=\"parked\"} 0",
        "outbox_held_messages{state=\"waiting\"} 0",
        "outbox_held_keys 0",
        "outbox_table_bytes 0",
        "outbox_dead_tuples 0",
        "outbox_oldest_transaction_age_seconds 0",
    ] {
        assert!(text.contains(&format!("\n{series}")), "{series} is missing in\n{text}");
    }
}

#[test]
fn what_the_relay_does_is_counted() {
    let metrics = metrics();
    let flow = &metrics.flow;
    flow.claimed(3, 0.01);
    flow.batch(3);
    flow.published(&address(Sink::Rabbitmq, "events"), 100, 0.002, -0.5);
    flow.publish_failed(Sink::Kafka, Reason::NoTopic, 1.0);
    flow.unknown(Sink::Kafka);
    flow.returned(Sink::Rabbitmq);
    flow.parked(Reason::Size, 2);
    flow.fenced(1);
    flow.link(Sink::Kafka, true, false);
    flow.reconnected(Peer::Broker(Sink::Kafka));
    flow.wakeup(Wakeup::Poll);
    let text = metrics.text().unwrap();
    for series in [
        "outbox_claimed_messages_total 3",
        "outbox_published_messages_total{destination=\"events\",sink=\"rabbitmq\"} 1",
        "outbox_published_bytes_total 100",
        "outbox_publish_failures_total{reason=\"no_topic\",sink=\"kafka\"} 1",
        "outbox_publish_duration_seconds_count 2",
        "outbox_delivery_latency_seconds_sum 0",
        "outbox_parked_messages_total{reason=\"size\"} 2",
        "outbox_sink_connected{sink=\"kafka\"} 1",
        "outbox_reconnects_total{peer=\"kafka\"} 1",
        "outbox_wakeups_total{source=\"poll\"} 1",
    ] {
        assert!(text.contains(&format!("\n{series}\n")), "{series} is missing in\n{text}");
    }
    assert!(!text.contains("outbox_last_publish_timestamp_seconds 0\n"));
}

#[test]
fn rows_cannot_make_endless_series() {
    let metrics = metrics();
    for number in 0..1_000 {
        metrics.flow.published(&address(Sink::Kafka, &format!("topic-{number}")), 1, 0.0, 0.0);
    }
    let text = metrics.text().unwrap();
    let series = text.lines().filter(|line| line.starts_with("outbox_published_messages_total{")).count();
    assert_eq!(series, flow::DESTINATIONS_MAX + 2, "200 destinations, and other for each sink");
    assert!(text.contains("\noutbox_published_messages_total{destination=\"other\",sink=\"kafka\"} 801\n"), "{text}");
}
