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

from boundary import boundary
from program import program


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


if __name__ == "__main__":
    program(__doc__, issue, mail)
