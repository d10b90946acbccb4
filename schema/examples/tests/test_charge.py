"""A charge in three steps: killed at every boundary and resumed, or run by several at once, it charges once."""

import json
import urllib.request

import pytest

from kit import KILLED, node, wait_until

BOUNDARIES = [
    "claimed", "preparing", "prepared", "calling", "called", "charged", "noted", "enqueued", "committed",
]  # fmt: skip


@pytest.fixture
def payments(stage):
    """The payment service's address, and what it charged."""
    service = stage.start(node("payment_service.js"))
    port = service.wait_line(r"listening on (\d+)")[1]
    url = f"http://127.0.0.1:{port}"

    def charges():
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)

    return url, charges


def effects(stage, purchase):
    """The state of the purchase, and its receipts."""
    return stage.db.execute(
        "SELECT state, (SELECT count(*) FROM outbox.message WHERE ordering_key = id) FROM purchase WHERE id = %s",
        (purchase,),
    ).fetchone()


def test_killed_at_any_boundary_and_resumed_it_charges_once(stage, payments):
    url, charges = payments
    for number, boundary in enumerate(BOUNDARIES):
        purchase = f"p-{boundary}"
        stage.db.execute("INSERT INTO purchase VALUES (%s, %s, 'created')", (purchase, 10 + number))
        command = [*node("charge.js"), purchase]
        code, text = stage.run(command, PAYMENT_URL=url, KILL_AT=boundary)
        assert code == KILLED, text
        # The price changes meanwhile; the charge that was begun keeps its amount.
        if stage.one("SELECT inbox.is_done('charge', %s, 'prepare')", f"charge:{purchase}"):
            stage.db.execute("UPDATE purchase SET total = 999 WHERE id = %s", (purchase,))
        for _ in range(2):
            code, text = stage.run(command, PAYMENT_URL=url)
            assert (code, text) == (0, f"{purchase} is paid by ch_{number + 1}"), boundary
            assert effects(stage, purchase) == ("paid", 1), boundary
    made = charges()
    assert [charge["key"] for charge in made] == [f"charge:p-{boundary}" for boundary in BOUNDARIES]
    assert [json.loads(charge["body"])["amount"] for charge in made] == [10 + n for n in range(len(BOUNDARIES))]
    calls = {charge["key"].removeprefix("charge:p-"): charge["calls"] for charge in made}
    assert calls == {boundary: 2 if boundary == "called" else 1 for boundary in BOUNDARIES}


def test_three_at_once_charge_once(stage, payments):
    url, charges = payments
    stage.db.execute("INSERT INTO purchase VALUES ('p', 10, 'created')")
    runs = [stage.start([*node("charge.js"), "p"], PAYMENT_URL=url) for _ in range(3)]
    for run in runs:
        assert run.wait_exit() == 0, run.text()
        assert run.text() == "p is paid by ch_1"
    assert len(charges()) == 1
    assert effects(stage, "p") == ("paid", 1)


def test_a_service_that_is_away_is_an_error_and_the_next_run_goes_on(stage, payments):
    url, charges = payments
    stage.db.execute("INSERT INTO purchase VALUES ('p', 10, 'created')")
    command = [*node("charge.js"), "p"]
    code, _ = stage.run(command, PAYMENT_URL="http://127.0.0.1:9")
    assert code == 1
    assert stage.one("SELECT inbox.is_done('charge', 'charge:p', 'prepare')")
    assert effects(stage, "p") == ("created", 0)
    assert stage.run(command, PAYMENT_URL=url) == (0, "p is paid by ch_1")
    assert effects(stage, "p") == ("paid", 1)


def test_a_stop_signal_gives_the_step_in_hand_back(stage, payments):
    url, charges = payments
    stage.db.execute("INSERT INTO purchase VALUES ('p', 10, 'created')")
    run = stage.start([*node("charge.js"), "p"], PAYMENT_URL=url, PAUSE_AT="noted")
    run.wait_line("paused at noted")
    assert run.stop() == 0
    assert effects(stage, "p") == ("created", 0)
    assert stage.run([*node("charge.js"), "p"], PAYMENT_URL=url)[0] == 0
    assert effects(stage, "p") == ("paid", 1)
    assert [charge["calls"] for charge in charges()] == [1]


def test_the_receipt_of_a_relay_killed_between_publish_and_mark_comes_again_under_its_id(stage, payments, broker):
    url, charges = payments
    stage.db.execute("INSERT INTO purchase VALUES ('p', 10, 'created')")
    command, environment = [*node("charge.js"), "p"], {"PAYMENT_URL": url, "RECEIPT_TOPIC": broker.topic}
    relay = stage.relay(**broker.relay_environment())
    with stage.no_marks():
        assert stage.run(command, KILL_AT="committed", **environment)[0] == KILLED
        wait_until("the receipt at the broker", lambda: broker.arrived() == 1)
        relay.kill()
        stage.no_sessions()
        assert stage.run(command, **environment)[0] == 0
    assert stage.one("SELECT count(*) FROM outbox.message WHERE sent_at IS NOT NULL") == 0
    stage.relay(**broker.relay_environment())
    wait_until("the mark", lambda: stage.one("SELECT count(*) FROM outbox.message WHERE sent_at IS NULL") == 0)
    receipts = broker.messages()
    assert len(receipts) >= 2 and len(set(receipts)) == 1, receipts
    message_id, body = receipts[0]
    assert (message_id, json.loads(body)) == ("receipt:p", {"purchase": "p", "charge": "ch_1"})
    assert (len(charges()), effects(stage, "p")) == (1, ("paid", 1))
