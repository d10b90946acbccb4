//! A publication as OTLP has it, by OpenTelemetry's conventions for messaging.
//!
//! Of kind CLIENT, since the message carries the application's context and not this span's; a child of the row's span,
//! so that it stands in the same trace, with a link to it, as the conventions ask of whoever sends what another made.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, SpanFlags, Status};
use outbox_core::{Address, Reason, Sink};

use super::parent::Parent;

/// RabbitMQ's default exchange has an empty name, which no list of spans shows.
const DEFAULT_EXCHANGE: &str = "amq.default";
/// Sampled, and it is known that the parent is another process's.
const FLAGS: u32 = 1 | SpanFlags::ContextHasIsRemoteMask as u32 | SpanFlags::ContextIsRemoteMask as u32;

/// One row that was handed to a broker, and what it answered. The row itself is not kept: its payload has a bound of
/// its own.
pub(super) struct Publication {
    pub(super) parent: Parent,
    pub(super) message_id: String,
    pub(super) ordering_key: Option<Arc<str>>,
    pub(super) address: Arc<Address>,
    /// From 1; grows with each failure by the row's own fault.
    pub(super) attempt: u32,
    /// `None`: confirmed.
    pub(super) error: Option<(Reason, String)>,
    pub(super) started: SystemTime,
    pub(super) ended: SystemTime,
}

impl Publication {
    fn into_span(self) -> Span {
        let attributes = self.attributes();
        let link = Link {
            trace_id: self.parent.trace_id.to_vec(),
            span_id: self.parent.span_id.to_vec(),
            trace_state: self.parent.state.clone(),
            flags: FLAGS,
            ..Link::default()
        };
        let status = self.error.map(|(_, message)| Status { code: StatusCode::Error.into(), message });
        Span {
            trace_id: self.parent.trace_id.to_vec(),
            span_id: span_id().to_vec(),
            trace_state: self.parent.state,
            parent_span_id: self.parent.span_id.to_vec(),
            flags: FLAGS,
            name: format!("send {}", shown(&self.address.destination)),
            kind: SpanKind::Client.into(),
            start_time_unix_nano: nanos(self.started),
            end_time_unix_nano: nanos(self.ended),
            attributes,
            links: vec![link],
            status,
            ..Span::default()
        }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let (destination, routing_key) = (&self.address.destination, &self.address.routing_key);
        let mut attributes = vec![
            text("messaging.system", self.address.sink.as_str()),
            text("messaging.operation.name", "send"),
            text("messaging.operation.type", "send"),
            text("messaging.message.id", &self.message_id),
            number("outbox.attempt", self.attempt.into()),
        ];
        match self.address.sink {
            Sink::Rabbitmq => {
                let name = match (destination.as_str(), routing_key.as_str()) {
                    ("", "") => DEFAULT_EXCHANGE.to_owned(),
                    (name, "") | ("", name) => name.to_owned(),
                    (exchange, routing_key) => format!("{exchange}:{routing_key}"),
                };
                attributes.push(text("messaging.destination.name", &name));
                if !routing_key.is_empty() {
                    attributes.push(text("messaging.rabbitmq.destination.routing_key", routing_key));
                }
            }
            Sink::Kafka => {
                attributes.push(text("messaging.destination.name", destination));
                attributes.extend(self.ordering_key.as_deref().map(|key| text("messaging.kafka.message.key", key)));
            }
        }
        attributes.extend(self.error.as_ref().map(|(reason, _)| text("error.type", reason.as_str())));
        attributes
    }
}

/// What all spans say of the service.
pub(super) struct Resource(v1::Resource);

impl Resource {
    /// `configured` wins over what the relay says of itself.
    pub(super) fn new(configured: &[(String, String)], relay_id: uuid::Uuid) -> Self {
        let own =
            [("service.version", env!("CARGO_PKG_VERSION").to_owned()), ("service.instance.id", relay_id.to_string())];
        let own = own.iter().filter(|(name, _)| configured.iter().all(|(taken, _)| taken != name));
        let configured = configured.iter().map(|(name, value)| text(name, value));
        let attributes = configured.chain(own.map(|(name, value)| text(name, value))).collect();
        Self(v1::Resource { attributes, ..v1::Resource::default() })
    }
}

/// One request with all of these.
pub(super) fn request(resource: &Resource, publications: Vec<Publication>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "outbox-relay".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = publications.into_iter().map(Publication::into_span).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans = ResourceSpans { resource: Some(resource.0.clone()), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn shown(destination: &str) -> &str {
    if destination.is_empty() { DEFAULT_EXCHANGE } else { destination }
}

fn text(name: &str, value: &str) -> KeyValue {
    attribute(name, Value::StringValue(value.to_owned()))
}

fn number(name: &str, value: i64) -> KeyValue {
    attribute(name, Value::IntValue(value))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Random, and never zeros alone, which would be none.
fn span_id() -> [u8; 8] {
    fastrand::u64(1..).to_be_bytes()
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn publication(sink: Sink, destination: &str, routing_key: &str) -> Publication {
        let started = UNIX_EPOCH + Duration::from_secs(1);
        Publication {
            parent: Parent { trace_id: [1; 16], span_id: [2; 8], state: "vendor=1".to_owned() },
            message_id: "order:1".to_owned(),
            ordering_key: Some("order".into()),
            address: Arc::new(Address {
                sink,
                destination: destination.to_owned(),
                routing_key: routing_key.to_owned(),
            }),
            attempt: 3,
            error: None,
            started,
            ended: started + Duration::from_millis(5),
        }
    }

    fn value(span: &Span, name: &str) -> Option<String> {
        let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
        match found.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some(text.clone()),
            Value::IntValue(number) => Some(number.to_string()),
            _ => None,
        }
    }

    #[test]
    fn a_span_is_the_rows_child_and_links_to_it() {
        let span = publication(Sink::Kafka, "orders", "").into_span();
        assert_eq!((span.trace_id.as_slice(), span.parent_span_id.as_slice()), ([1; 16].as_slice(), [2; 8].as_slice()));
        assert_eq!((span.links[0].trace_id.as_slice(), span.links[0].span_id.as_slice()), (&[1; 16][..], &[2; 8][..]));
        assert_eq!((span.trace_state.as_str(), span.links[0].trace_state.as_str()), ("vendor=1", "vendor=1"));
        assert_ne!(span.span_id, [2; 8]);
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 5_000_000);
        assert_eq!((&span.status, value(&span, "error.type")), (&None, None));
        assert_eq!(value(&span, "outbox.attempt").unwrap(), "3");
        assert_eq!(value(&span, "messaging.kafka.message.key").unwrap(), "order");
    }

    #[test]
    fn a_destination_in_rabbitmq_is_exchange_and_routing_key() {
        for (exchange, routing_key, name, destination) in [
            ("events", "a.b", "send events", "events:a.b"),
            ("events", "", "send events", "events"),
            ("", "queue", "send amq.default", "queue"),
            ("", "", "send amq.default", "amq.default"),
        ] {
            let span = publication(Sink::Rabbitmq, exchange, routing_key).into_span();
            assert_eq!(
                (span.name.as_str(), value(&span, "messaging.destination.name").unwrap()),
                (name, destination.into())
            );
            assert_eq!(value(&span, "messaging.kafka.message.key"), None);
        }
    }

    #[test]
    fn what_is_configured_of_the_service_wins() {
        let configured =
            [("service.name", "shop"), ("service.version", "7")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let resource = Resource::new(&configured, uuid::Uuid::nil());
        let names: Vec<&str> = resource.0.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(names, ["service.name", "service.version", "service.instance.id"]);
        assert_eq!(resource.0.attributes[1], text("service.version", "7"));
    }
}
