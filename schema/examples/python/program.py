"""The command line of a program with a job and a consumer of what it made:

    NAME.py issue MONTH CUSTOMER...     the job; run it as often as you like
    NAME.py mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
    NAME.py mail-kafka TOPIC            what cannot be mailed goes to TOPIC.dead

DATABASE_URL says where the application's tables are.
"""

import os
import signal
import sys

import psycopg

from consume import consume_kafka, consume_rabbitmq


def program(usage, issue, mail):
    """issue(connection, month, customer) is the job, mail(connection, message_id, body) the work of one message."""
    # A stop at any instant: the transaction rolls back, and the message was not acknowledged.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:

        def work(message_id, body):
            mail(connection, message_id, body)

        match sys.argv[1:]:
            case ["issue", month, *customers]:
                made = sum(issue(connection, month, customer) for customer in customers)
                print(f"{made} of {len(customers)} invoices made")
            case ["mail-rabbitmq", queue]:
                consume_rabbitmq(queue, work)
            case ["mail-kafka", topic]:
                consume_kafka(topic, work)
            case _:
                sys.exit(usage)
