"""Consumers of RabbitMQ and Kafka: work(message_id, body) does the work of one message in a transaction, and the message
is acknowledged after it. What can never be handled goes to the queue's dead-letter exchange, or to TOPIC.dead.

AMQP_URL and KAFKA_BROKERS say where things are.
"""

import os

import psycopg

# What can never succeed, however often it is tried: it is set aside, so that others go on.
HOPELESS = (psycopg.DataError, ValueError, KeyError)


def is_hopeless(error):
    return isinstance(error, HOPELESS) or getattr(error, "sqlstate", None) == "OX002"


def consume_rabbitmq(queue, work):
    import pika

    broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=10)
    print("ready", flush=True)
    for method, properties, body in channel.consume(queue):
        try:
            work(properties.message_id, body)
        except Exception as error:
            if not is_hopeless(error):
                raise  # The message goes back as the connection ends; whoever runs this starts it again.
            print("set aside", properties.message_id, type(error).__name__, flush=True)
            channel.basic_nack(method.delivery_tag, requeue=False)  # To the queue's dead-letter exchange.
        else:
            channel.basic_ack(method.delivery_tag)


def consume_kafka(topic, work):
    from confluent_kafka import Consumer, KafkaException, Producer

    dead_letters = Producer({"bootstrap.servers": os.environ["KAFKA_BROKERS"], "acks": "all"})
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BROKERS"],
            "group.id": os.environ.get("GROUP", "mailer"),
            # A worker that is started again under its name goes on at once, not after the dead one's session.
            "group.instance.id": os.environ.get("WORKER", "mailer-1"),
            "session.timeout.ms": 6000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    print("ready", flush=True)
    while True:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        message_id = dict(message.headers() or []).get("id", b"").decode()
        try:
            work(message_id, message.value())
        except Exception as error:
            if not is_hopeless(error):
                raise
            print("set aside", message_id, type(error).__name__, flush=True)
            # The broker must have it before its offset is committed.
            failures = []
            dead_letters.produce(
                f"{topic}.dead",
                message.value(),
                message.key(),
                headers=message.headers() or [],
                on_delivery=lambda failure, _: failures.append(failure) if failure else None,
            )
            if dead_letters.flush(60) > 0 or failures:
                raise RuntimeError(f"no dead letter of {message_id}: {failures}") from error
        consumer.commit(message, asynchronous=False)
