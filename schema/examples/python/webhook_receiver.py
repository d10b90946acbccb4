"""A webhook receiver: checks the signature, records the delivery, answers at once, and does the work later.

    webhook_receiver.py serve     listens on 127.0.0.1, says its port
    webhook_receiver.py work      handles what was recorded, until nothing is left (--forever: until SIGTERM)

DATABASE_URL, WEBHOOK_SECRET, PORT. The sender repeats a delivery until it gets a 2xx, and in any order; the delivery's
id makes the repetitions one, and transitions make the order harmless.
"""

import hashlib
import hmac
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

from boundary import boundary

BODY_BYTES_MAX = 25 * 1024 * 1024


def is_signed(secret, body, signature):
    """The signature is over the bytes as they came: JSON that was parsed and written again has another one."""
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def record(connection, delivery, event, body):
    """Commits before it returns, so a 2xx means that the delivery cannot be lost. False: it was there."""
    with connection.transaction():
        claimed = connection.execute(
            "SELECT inbox.claim('webhook', %s, %s)", (delivery, hashlib.sha256(body).digest())
        ).fetchone()[0]
        if claimed:
            boundary("claimed")
            connection.execute("INSERT INTO delivery (id, event, body) VALUES (%s, %s, %s)", (delivery, event, body))
            boundary("inserted")
    boundary("recorded")
    return claimed


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    own = threading.local()

    def database(self):
        if getattr(self.own, "connection", None) is None or self.own.connection.closed:
            self.own.connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        return self.own.connection

    def finish(self):
        super().finish()
        if getattr(self.own, "connection", None) is not None:
            self.own.connection.close()

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if not 0 < length <= BODY_BYTES_MAX:
            self.close_connection = True
            return self.answer(413 if length > 0 else 400)
        body = self.rfile.read(length)
        secret = os.environ["WEBHOOK_SECRET"].encode()
        if not is_signed(secret, body, self.headers.get("X-Hub-Signature-256", "")):
            return self.answer(401)
        try:
            record(self.database(), self.headers.get("X-GitHub-Delivery"), self.headers.get("X-GitHub-Event"), body)
        except psycopg.OperationalError:
            self.answer(503)  # The sender tries again.
        except psycopg.Error as error:
            # OX002: another body under a known id. 22023: no id, or one too long.
            self.answer({"OX002": 409, "22023": 400, "23502": 400}.get(error.sqlstate, 500))
        else:
            self.answer(202)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def apply(connection, event, body):
    """What a delivery means. It looks at the record as it is, so that order does not matter."""
    content = json.loads(body)
    if event == "purchase.created":
        # Adds what the record lacks and takes no state back.
        connection.execute(
            "INSERT INTO purchase (id, total, state) VALUES (%s, %s, 'created') "
            "ON CONFLICT (id) DO UPDATE SET total = coalesce(purchase.total, EXCLUDED.total)",
            (content["id"], content["total"]),
        )
    elif event == "purchase.paid":
        # May come first; never brings a refunded purchase back.
        connection.execute(
            "INSERT INTO purchase (id, state) VALUES (%s, 'paid') "
            "ON CONFLICT (id) DO UPDATE SET state = 'paid' WHERE purchase.state = 'created'",
            (content["id"],),
        )
    elif event == "purchase.refunded":
        connection.execute(
            "INSERT INTO purchase (id, state) VALUES (%s, 'refunded') "
            "ON CONFLICT (id) DO UPDATE SET state = 'refunded'",
            (content["id"],),
        )
    else:
        repository = (content.get("repository") or {}).get("full_name", "")
        connection.execute(
            "INSERT INTO event_count AS c (repository, event, deliveries) VALUES (%s, %s, 1) "
            "ON CONFLICT (repository, event) DO UPDATE SET deliveries = c.deliveries + 1",
            (repository, event),
        )


def work_one(connection):
    """The oldest delivery that nobody else has in hand: its effect and its end are one transaction."""
    with connection.transaction():
        row = connection.execute(
            "SELECT id, event, body FROM delivery WHERE handled_at IS NULL "
            "ORDER BY received_at LIMIT 1 FOR UPDATE SKIP LOCKED"
        ).fetchone()
        if row is None:
            return False
        boundary("taken")
        delivery, event, body = row
        failure = None
        try:
            with connection.transaction():  # A savepoint: a delivery that makes no sense must not stop the others.
                apply(connection, event, body)
        except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, psycopg.DataError) as error:
            failure = type(error).__name__
        boundary("applied")
        connection.execute(
            "UPDATE delivery SET handled_at = clock_timestamp(), failure = %s WHERE id = %s", (failure, delivery)
        )
    boundary("handled")
    return True


def work(forever):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        while True:
            if not work_one(connection):
                if not forever:
                    return
                time.sleep(0.2)


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Receiver)
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()


def main(arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    match arguments:
        case ["serve"]:
            serve()
        case ["work", *rest] if rest in ([], ["--forever"]):
            work(bool(rest))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
