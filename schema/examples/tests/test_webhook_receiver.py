"""The webhook receiver: real deliveries twice, shuffled, at once, through receivers and workers that are killed."""

import collections
import gzip
import hashlib
import hmac
import http.client
import itertools
import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit import EXAMPLES, KILLED, PYTHON, ROOT, WAIT_SECONDS, wait_until

PROGRAM = [PYTHON, str(EXAMPLES / "python" / "webhook_receiver.py")]
SECRET = "it's a secret to everybody"


def sign(body):
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


class Sender:
    """Posts deliveries to a receiver, which may be killed and started again under its port."""

    def __init__(self, stage):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.stage = stage
        self.own = threading.local()

    def receiver(self, **environment):
        started = self.stage.start([*PROGRAM, "serve"], WEBHOOK_SECRET=SECRET, PORT=str(self.port), **environment)
        started.wait_line("listening on")
        return started

    def post(self, delivery, event, body, signature=None):
        headers = {"X-GitHub-Event": event, "X-Hub-Signature-256": signature or sign(body)}
        if delivery is not None:
            headers["X-GitHub-Delivery"] = delivery
        if getattr(self.own, "connection", None) is None:
            self.own.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            self.own.connection.request("POST", "/webhooks", body, headers)
            with self.own.connection.getresponse() as response:
                response.read()
                return response.status
        except (OSError, http.client.HTTPException):
            self.own.connection.close()
            raise

    def post_until_taken(self, delivery, event, body):
        """As a webhook's sender does: again until it gets a 2xx."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                status = self.post(delivery, event, body)
            except (OSError, http.client.HTTPException) as error:
                status = error
            if status == 202:
                return
            assert time.monotonic() < deadline, status
            time.sleep(0.05)


@pytest.fixture
def sender(stage):
    return Sender(stage)


def real_deliveries():
    with gzip.open(ROOT / "tests" / "data" / "github-webhooks.ndjson.gz", "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            yield line["delivery"], line["event"], line["repository"], json.dumps(line["payload"]).encode()


def test_real_deliveries_twice_shuffled_and_at_once_have_one_effect_each(stage, sender):
    deliveries = list(real_deliveries())
    seed = random.randrange(2**32)
    print("seed", seed)
    twice = random.Random(seed).sample(deliveries * 2, 2 * len(deliveries))
    receiver = sender.receiver()
    for boundary in ("applied", "handled"):
        stage.start([*PROGRAM, "work", "--forever"], KILL_AT=boundary)
    for _ in range(2):
        stage.start([*PROGRAM, "work", "--forever"])

    answered, half = itertools.count(1), threading.Event()

    def send(item):
        delivery, event, _, body = item
        sender.post_until_taken(delivery, event, body)
        if next(answered) == len(deliveries):
            half.set()

    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(send, item) for item in twice]
        assert half.wait(2 * WAIT_SECONDS)
        receiver.kill()
        sender.receiver()
        try:
            for one in sent:
                one.result()
        finally:
            pool.shutdown(cancel_futures=True)
    wait_until("all handled", lambda: stage.one("SELECT count(*) FROM delivery WHERE handled_at IS NULL") == 0)

    expected = collections.Counter((repository or "", event) for _, event, repository, _ in deliveries)
    assert sum(expected.values()) == 324
    found = stage.db.execute("SELECT repository, event, deliveries FROM event_count").fetchall()
    assert {(repository, event): count for repository, event, count in found} == dict(expected)
    assert stage.one("SELECT count(*) FROM delivery WHERE failure IS NOT NULL") == 0


@pytest.mark.parametrize("boundary, recorded", [("claimed", 0), ("inserted", 0), ("recorded", 1)])
def test_the_receiver_killed_at_any_step_records_once(stage, sender, boundary, recorded):
    receiver = sender.receiver(KILL_AT=boundary)
    with pytest.raises((OSError, http.client.HTTPException)):
        sender.post("d-1", "ping", b"{}")
    assert receiver.wait_exit() == KILLED
    assert stage.one("SELECT count(*) FROM delivery") == recorded
    sender.receiver()
    for _ in range(2):
        assert sender.post("d-1", "ping", b"{}") == 202
    assert stage.one("SELECT count(*) FROM delivery") == 1


def test_workers_killed_at_any_step_have_one_effect(stage, sender):
    sender.receiver()
    for number in range(4):
        assert sender.post(f"d-{number}", "ping", b"{}") == 202
    for boundary, handled in (("taken", 0), ("applied", 0), ("handled", 1), ("handled", 2)):
        code, text = stage.run([*PROGRAM, "work"], KILL_AT=boundary)
        assert code == KILLED, text
        assert stage.one("SELECT count(*) FROM delivery WHERE handled_at IS NOT NULL") == handled
    paused = stage.start([*PROGRAM, "work"], PAUSE_AT="applied")
    paused.wait_line("paused at applied")
    assert paused.stop() == 0, "a stop signal gives the delivery in hand back"
    for _ in range(2):
        assert stage.run([*PROGRAM, "work"]) == (0, "")
        assert stage.one("SELECT deliveries FROM event_count") == 4


def test_the_signature_is_that_of_the_raw_bytes(stage, sender):
    sender.receiver()
    body = b'{"id": "p", "total": 1.0}'
    again = json.dumps(json.loads(body), separators=(",", ":")).encode()
    assert json.loads(body) == json.loads(again)
    assert sender.post("d-1", "purchase.created", again, sign(body)) == 401
    assert sender.post("d-1", "purchase.created", body, "sha256=" + "0" * 64) == 401
    assert sender.post("d-1", "purchase.created", body, "ü") == 401
    assert stage.one("SELECT count(*) FROM delivery") == 0
    assert sender.post("d-1", "purchase.created", body) == 202
    assert bytes(stage.one("SELECT body FROM delivery")) == body


def test_bad_deliveries_are_refused_and_nothing_is_recorded(stage, sender):
    sender.receiver()
    assert sender.post("d-1", "ping", b"{}") == 202
    assert sender.post("d-1", "ping", b'{"other": "body"}') == 409
    assert sender.post(None, "ping", b"{}") == 400
    assert sender.post("", "ping", b"{}") == 400
    assert sender.post("d" * 256, "ping", b"{}") == 400
    assert sender.post("d-2", "ping", b"") == 400
    assert stage.one("SELECT array_agg(id) FROM delivery") == ["d-1"]


def test_a_delivery_without_sense_does_not_stop_the_others(stage, sender):
    sender.receiver()
    for delivery, event, body in (("a", "ping", b"no JSON"), ("b", "purchase.paid", b"{}"), ("c", "ping", b"{}")):
        assert sender.post(delivery, event, body) == 202
    assert stage.run([*PROGRAM, "work"]) == (0, "")
    failures = stage.db.execute("SELECT id, failure FROM delivery ORDER BY id").fetchall()
    assert failures == [("a", "JSONDecodeError"), ("b", "KeyError"), ("c", None)]
    assert stage.one("SELECT deliveries FROM event_count") == 1


def test_any_order_and_repetition_ends_in_the_right_state(stage, sender):
    """Paid before created, and each of them again, under the same delivery id and under another."""
    sender.receiver()
    expected = {}
    for steps in (("created", "paid"), ("created", "paid", "refunded")):
        for order in itertools.permutations(steps):
            purchase = "-".join(order)
            expected[purchase] = (12, steps[-1])
            for attempt in (1, 1, 2):
                for step in order:
                    content = {"id": purchase} | ({"total": 12} if step == "created" else {})
                    body = json.dumps(content).encode()
                    assert sender.post(f"{purchase}:{step}:{attempt}", f"purchase.{step}", body) == 202
    assert stage.run([*PROGRAM, "work"]) == (0, "")
    found = stage.db.execute("SELECT id, total, state FROM purchase").fetchall()
    assert {purchase: (total, state) for purchase, total, state in found} == expected
