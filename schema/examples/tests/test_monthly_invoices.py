"""Monthly invoices, in each language and to each broker: run twice, at once, and killed between any two steps."""

import itertools

import pytest

from jobs import (
    MONTH,
    counts,
    customers,
    issue,
    killed_between_any_two_steps_and_run_again,
    run_twice_at_once,
    start_mailer,
)
from kit import INVOICES, KILLED, wait_until

OUTBOX = "outbox.message"
JOB_BOUNDARIES = ["claimed", "invoiced", "enqueued", "committed"]
MAIL_BOUNDARIES = ["claimed", "mailed", "committed"]


@pytest.fixture(params=INVOICES)
def program(request):
    return INVOICES[request.param]


def test_the_job_killed_between_any_two_steps_and_run_again_has_one_effect(stage, program):
    killed_between_any_two_steps_and_run_again(stage, program, JOB_BOUNDARIES, OUTBOX)


def test_the_job_run_twice_at_once_has_one_effect(stage, program):
    run_twice_at_once(stage, program, OUTBOX)


def test_bad_input_is_an_error_and_no_effect(stage, program):
    code, text = issue(stage, program, ["nobody"])
    assert code not in (0, KILLED) and "no customer nobody" in text, text
    code, text = issue(stage, program, ["x" * 256])
    assert code not in (0, KILLED) and "message_id must be 1 to 255 bytes long" in text, text
    assert counts(stage, OUTBOX) == (0, 0, 0, 0)


def test_the_mailer_and_the_relay_killed_at_any_step_mail_once(stage, program, broker):
    names = customers(stage, 8)
    relay = stage.relay(**broker.relay_environment())
    with stage.no_marks():
        assert issue(stage, program, names, broker.topic)[0] == 0
        wait_until("all messages at the broker", lambda: broker.arrived() == len(names))
        relay.kill()  # Between publish and mark.
        stage.no_sessions()
        for boundary in MAIL_BOUNDARIES:
            mailer = start_mailer(stage, program, broker, KILL_AT=boundary)
            assert mailer.wait_exit() == KILLED, mailer.text()
        # A stop signal gives the work in hand back.
        mailer = start_mailer(stage, program, broker, PAUSE_AT="claimed")
        mailer.wait_line("paused at claimed")
        assert mailer.stop() == 0, mailer.text()
    assert stage.one("SELECT count(*) FROM outbox.message WHERE sent_at IS NOT NULL") == 0
    assert counts(stage, OUTBOX)[2:] == (1, 0), "only what died after its commit was mailed"

    # Everything is published again, and what was published before is there too.
    stage.relay(**broker.relay_environment())
    mailer = start_mailer(stage, program, broker)
    for name in names:
        mailer.wait_line(f"done before invoice:{MONTH}:{name}$")
    wait_until("all marks", lambda: stage.one("SELECT count(*) FROM outbox.message WHERE sent_at IS NULL") == 0)
    assert counts(stage, OUTBOX) == (len(names), len(names), len(names), 0)
    assert mailer.stop() == 0, mailer.text()


def email(customer):
    return f'{{"month": "{MONTH}", "customer": "{customer}", "total": 1}}'


def test_two_mailers_and_the_same_messages_twice_mail_once(stage, program, shared_broker):
    names = customers(stage, 20)
    for _ in range(2):
        for name in names:
            shared_broker.publish(f"invoice:{MONTH}:{name}", email(name))
    mailers = [start_mailer(stage, program, shared_broker, WORKER=f"mailer-{number}") for number in (1, 2)]
    answers = lambda: [line for mailer in mailers for line in mailer.lines if "invoice:" in line]
    wait_until("40 answers", lambda: len(answers()) == 2 * len(names))
    assert sum(line.startswith("mailed") for line in answers()) == len(names)
    assert counts(stage, OUTBOX)[2:] == (len(names), 0)


def test_a_mailer_joins_and_another_is_killed_and_each_message_is_mailed_once(stage, program, kafka_of_two):
    published = itertools.count()

    def publish():
        """To each partition a message with an id of its own, and one with an id that both get.

        Of the latter one mailer may always be the first: mailers get partitions in the order of their names.
        """
        number = next(published)
        for partition in range(2):
            own = f"{number}.{partition}"
            kafka_of_two.publish(f"invoice:{own}", email(f"cust_{own}"), partition)
            kafka_of_two.publish(f"invoice:{number}", email(f"cust_{number}"), partition)

    def mailed(mailer):
        return sum(line.startswith("mailed") for line in list(mailer.lines))

    def work_goes_on(mailer):
        """Publishes until this mailer has mailed something more."""
        before = mailed(mailer)
        wait_until(f"{mailer.name} to mail", lambda: publish() or mailed(mailer) > before)

    first = start_mailer(stage, program, kafka_of_two, WORKER="mailer-1")
    work_goes_on(first)
    second = start_mailer(stage, program, kafka_of_two, WORKER="mailer-2")
    work_goes_on(second)
    work_goes_on(first)
    first.kill()
    for _ in range(10):
        publish()
    for partition in range(2):
        kafka_of_two.publish(f"last:{partition}", email(f"last_{partition}"), partition)
    for partition in range(2):
        second.wait_line(f"mailed last:{partition}$")
    assert counts(stage, OUTBOX)[2:] == (3 * next(published) + 2, 0)
    assert second.stop() == 0, second.text()


def test_another_body_under_a_known_id_is_set_aside(stage, program, rabbit):
    for body in ('{"month": "m", "customer": "c", "total": 1}', '{"month": "m", "customer": "c", "total": 2}', "{"):
        rabbit.publish("invoice:m:c", body)
    rabbit.publish("invoice:m:d", "no JSON")
    rabbit.publish("invoice:m:e", '{"month": "m", "customer": "e", "total": 1}')
    mailer = start_mailer(stage, program, rabbit)
    mailer.wait_line("mailed invoice:m:e")
    wait_until("the dead letters", lambda: rabbit.set_aside() == 3)
    assert stage.db.execute("SELECT customer, total FROM sent_email ORDER BY 1").fetchall() == [("c", 1), ("e", 1)]
    assert not stage.one("SELECT inbox.is_done('mailer', 'invoice:m:d')"), "what failed is not done"


def test_what_cannot_be_mailed_goes_to_the_dead_letter_topic(stage, program, kafka):
    first, other = '{"month": "m", "customer": "c", "total": 1}', '{"month": "m", "customer": "c", "total": 2}'
    for message_id, body in (("a", first), ("a", other), ("b", "no JSON"), (None, first), ("c", first)):
        kafka.publish(message_id, body)
    mailer = start_mailer(stage, program, kafka)
    mailer.wait_line("mailed c")
    letters = kafka.dead_letters(3)
    assert [(headers.get("id"), body.decode()) for headers, body in letters] == [
        ("a", other),
        ("b", "no JSON"),
        (None, first),
    ]
    if program == INVOICES["rust"]:
        # The client's consumer says why.
        assert [headers["outbox-reason"] for headers, _ in letters] == ["other_body", "attempts", "no_id"]
    assert counts(stage, OUTBOX)[2:] == (2, 1)
