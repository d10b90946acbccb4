"""An application with tables of its own: a job that claims its key in done_jobs and writes a row into a plain outbox
table, and a consumer that claims the message's id there too. Neither knows of a relay.

    plain_table.py issue MONTH CUSTOMER...     the job; run it as often as you like
    plain_table.py mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
    plain_table.py mail-kafka TOPIC

DATABASE_URL, AMQP_URL and KAFKA_BROKERS say where things are. The relay takes the rows over as ../plain_table.toml
says. What a consumer does with a message that can never be handled is shown in monthly_invoices.py.
"""

import json
import os
import signal
import sys

import psycopg

from boundary import boundary


def claim(connection, key):
    """True once for each key, if the transaction commits. Another one with the same key waits for this one's end."""
    done = connection.execute("INSERT INTO done_jobs (key) VALUES (%s) ON CONFLICT (key) DO NOTHING", (key,))
    return done.rowcount == 1


def issue(connection, month, customer):
    """Makes the invoice and writes the row of its e-mail, both or neither. False: that was done before."""
    ref = f"{month}:{customer}"
    with connection.transaction():
        if not claim(connection, f"invoice:{ref}"):
            return False
        boundary("claimed")
        made = connection.execute(
            "INSERT INTO invoice (month, customer, total) SELECT %s, id, amount FROM customer WHERE id = %s",
            (month, customer),
        )
        if made.rowcount == 0:
            raise LookupError(f"no customer {customer}")
        boundary("invoiced")
        connection.execute("INSERT INTO outbox (kind, ref) VALUES ('invoice-email', %s)", (ref,))
        boundary("written")
    boundary("committed")
    return True


def mail(connection, message_id, body):
    """The work of one message, in one transaction with its claim. The caller acknowledges after it."""
    month, customer = json.loads(body)["ref"].split(":", 1)
    with connection.transaction():
        claimed = claim(connection, f"mail:{message_id}")
        if claimed:
            boundary("mail-claimed")
            connection.execute(
                "INSERT INTO sent_email (month, customer, total) "
                "SELECT month, customer, total FROM invoice WHERE month = %s AND customer = %s",
                (month, customer),
            )
            boundary("mailed")
    boundary("mail-committed")
    print("mailed" if claimed else "done before", message_id, flush=True)


def mail_rabbitmq(connection, queue):
    import pika

    broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=10)
    for method, properties, body in channel.consume(queue):
        mail(connection, properties.message_id, body)
        channel.basic_ack(method.delivery_tag)


def mail_kafka(connection, topic):
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BROKERS"],
            "group.id": os.environ.get("GROUP", "mailer"),
            "group.instance.id": os.environ.get("WORKER", "mailer-1"),
            "session.timeout.ms": 6000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        mail(connection, dict(message.headers())["id"].decode(), message.value())
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
