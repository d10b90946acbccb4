"""Monthly invoices: a job that makes each invoice once, and a consumer that mails each once.

    monthly_invoices.py issue MONTH CUSTOMER...     the job; run it as often as you like
    monthly_invoices.py mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
    monthly_invoices.py mail-kafka TOPIC            what cannot be mailed goes to TOPIC.dead

DATABASE_URL, AMQP_URL and KAFKA_BROKERS say where things are. Keys come from the work, so a second run is told
that it was done: ../../IDEMPOTENCY.md says why this is safe to run twice.
"""

import hashlib
import json
import os
import signal
import sys

import psycopg

from boundary import boundary


def issue(connection, month, customer):
    """Makes the invoice and enqueues its e-mail, both or neither. False: that was done before."""
    key = f"invoice:{month}:{customer}"
    with connection.transaction():
        if not connection.execute("SELECT inbox.claim('send-invoice', %s, NULL)", (key,)).fetchone()[0]:
            return False
        boundary("claimed")
        total = connection.execute(
            "INSERT INTO invoice (month, customer, total) SELECT %s, id, amount FROM customer WHERE id = %s "
            "RETURNING total",
            (month, customer),
        ).fetchone()
        if total is None:
            raise LookupError(f"no customer {customer}")
        boundary("invoiced")
        connection.execute(
            "SELECT outbox.enqueue(idempotency_key => %s, topic => %s, payload => %s, ordering_key => %s)",
            (
                key,
                os.environ.get("EMAIL_TOPIC", "invoice.email"),
                json.dumps({"month": month, "customer": customer, "total": total[0]}),
                customer,
            ),
        )
        boundary("enqueued")
    boundary("committed")
    return True


def mail(connection, message_id, body):
    """The work of one message, in one transaction with its claim. The caller acknowledges after it."""
    with connection.transaction():
        claimed = connection.execute(
            "SELECT inbox.claim('mailer', %s, %s)", (message_id, hashlib.sha256(body).digest())
        ).fetchone()[0]
        if claimed:
            boundary("claimed")
            invoice = json.loads(body)
            connection.execute(
                "INSERT INTO sent_email (month, customer, total) VALUES (%s, %s, %s)",
                (invoice["month"], invoice["customer"], invoice["total"]),
            )
            boundary("mailed")
    boundary("committed")
    print("mailed" if claimed else "done before", message_id, flush=True)


# What can never succeed, however often it is tried: it is set aside, so that others go on.
HOPELESS = (psycopg.DataError, json.JSONDecodeError, UnicodeDecodeError, KeyError)


def is_hopeless(error):
    return isinstance(error, HOPELESS) or getattr(error, "sqlstate", None) == "OX002"


def mail_rabbitmq(connection, queue):
    import pika

    broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=10)
    print("ready", flush=True)
    for method, properties, body in channel.consume(queue):
        try:
            mail(connection, properties.message_id, body)
        except Exception as error:
            if not is_hopeless(error):
                raise  # The message goes back as the connection ends; whoever runs this starts it again.
            print("set aside", properties.message_id, type(error).__name__, flush=True)
            channel.basic_nack(method.delivery_tag, requeue=False)  # To the queue's dead-letter exchange.
        else:
            channel.basic_ack(method.delivery_tag)


def mail_kafka(connection, topic):
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
            mail(connection, message_id, message.value())
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


def main(arguments):
    # A stop at any instant: the transaction rolls back, and the message was not acknowledged.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        match arguments:
            case ["issue", month, *customers]:
                made = sum(issue(connection, month, customer) for customer in customers)
                print(f"{made} of {len(customers)} invoices made")
            case ["mail-rabbitmq", queue]:
                mail_rabbitmq(connection, queue)
            case ["mail-kafka", topic]:
                mail_kafka(connection, topic)
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
