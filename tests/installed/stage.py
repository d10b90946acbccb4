"""What these tests share: a database and a queue of their own, programs that are run to their end, and waits.

Every wait has a deadline and says what it waited for.
"""

import os
import pathlib
import re
import subprocess
import time
import uuid

import pika
import psycopg

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
WAIT_SECONDS = 120
# What a relay logs once its endpoint has a port.
ENDPOINT = r"admin endpoint listening addr=(\S+)"


# Before a command of a program that must end with the test run, also when that is killed.
BOUND = ["setpriv", "--pdeathsig", "TERM", "--"]


def unique(name):
    return f"{name}_{uuid.uuid4().hex[:12]}"


def wait_until(what, check):
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s in vain: {what}"
        time.sleep(0.05)
    return found


def run(*command, timeout=WAIT_SECONDS, **environment):
    """Exit code, and standard output and error together."""
    finished = subprocess.run(
        [str(part) for part in command],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
    )
    return finished.returncode, finished.stdout


def done(*command, **options):
    """What a program printed that must not fail."""
    code, text = run(*command, **options)
    assert code == 0, f"{' '.join(str(part) for part in command)} ended with {code}:\n{text}"
    return text.strip()


class Place:
    """An empty database with a login for the relay, and a queue. The relay's own commands make the schema."""

    def __init__(self):
        server = os.environ["TEST_DATABASE_URL"]
        self.name, self.login = unique("installed"), unique("relay")
        self.admin = psycopg.connect(server, autocommit=True)
        self.admin.execute(f"CREATE DATABASE {self.name} ENCODING 'UTF8' TEMPLATE template0")
        self.owner_url = re.sub(r"/[^/?]*(\?|$)", rf"/{self.name}\1", server)
        self.secret = uuid.uuid4().hex
        self.relay_url = re.sub(r"//[^@]*@", f"//{self.login}:{self.secret}@", self.owner_url)
        self.db = psycopg.connect(self.owner_url, autocommit=True)

        self.amqp_url = os.environ["TEST_AMQP_URL"]
        self.exchange, self.queue = unique("exchange"), unique("queue")
        self.connection = pika.BlockingConnection(pika.URLParameters(self.amqp_url))
        self.channel = self.connection.channel()
        self.channel.exchange_declare(self.exchange, "topic", durable=True)
        self.channel.queue_declare(self.queue, durable=True)
        self.channel.queue_bind(self.queue, self.exchange, "#")

    def make_roles(self):
        """After `migrate`: the roles of the README, and a login that has the relay's and no other."""
        with self.db.transaction():
            self.db.execute((ROOT / "schema/roles.sql").read_text())
            self.db.execute(f"CREATE ROLE {self.login} LOGIN PASSWORD '{self.secret}' IN ROLE outbox_relay")

    def insert(self, key, payload):
        self.db.execute(
            "INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES (%s, 'order.paid', %s)", (key, payload)
        )

    def next_message(self):
        """Id and body of the message that comes next."""

        def take():
            got, properties, body = self.channel.basic_get(self.queue, auto_ack=True)
            return got and (properties.message_id, body.decode())

        return wait_until("a message", take)

    def relays(self, key):
        """Whether a row that is inserted now arrives as it is, as the next message."""
        self.insert(key, f'{{"key": "{key}"}}')
        assert self.next_message() == (key, f'{{"key": "{key}"}}')

    def lanes_owned(self):
        return self.db.execute("SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL").fetchone()[0]

    def close(self):
        self.channel.queue_delete(self.queue)
        self.channel.exchange_delete(self.exchange)
        self.connection.close()
        self.db.close()
        self.admin.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        self.admin.execute(f"DROP ROLE IF EXISTS {self.login}")
        self.admin.close()


class Process:
    """What the kernel says of a process: of its rights and of its root."""

    def __init__(self, status, mountinfo):
        self.status = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        self.mounts = [line.split(" ") for line in mountinfo.splitlines()]

    def users(self):
        """Real, effective, saved and filesystem user, then the same of groups."""
        return self.status["Uid"].split() + self.status["Gid"].split()

    def capabilities(self):
        return {name: int(self.status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}

    def options(self, point):
        """The options of what is mounted there, topmost."""
        return [mount[5].split(",") for mount in self.mounts if mount[4] == point][-1]
