"""An application with tables of its own: a job that claims its key in done_jobs and writes a row into a plain outbox
table, and a consumer that claims the message's id there too. Neither knows of a relay.

    plain_table.py issue MONTH CUSTOMER...     the job; run it as often as you like
    plain_table.py mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
    plain_table.py mail-kafka TOPIC            what cannot be mailed goes to TOPIC.dead

DATABASE_URL, AMQP_URL and KAFKA_BROKERS say where things are. The relay takes the rows over as ../plain_table.toml
says.
"""

import json

from boundary import boundary
from program import program


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


if __name__ == "__main__":
    program(__doc__, issue, mail)
