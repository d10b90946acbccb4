"""What the tests of jobs that make invoices, and of their mailers, share. `outbox` is the table that a job writes."""

from kit import KILLED

MONTH = "2026-10"


def customers(stage, count):
    names = [f"cust_{number}" for number in range(count)]
    for number, name in enumerate(names):
        stage.db.execute("INSERT INTO customer VALUES (%s, %s)", (name, 10 + number))
    return names


def counts(stage, outbox):
    """Invoices, rows of the outbox, and e-mails; how many of them are double."""
    return stage.db.execute(
        f"SELECT (SELECT count(*) FROM invoice), (SELECT count(*) FROM {outbox}), (SELECT count(*) FROM sent_email), "
        "(SELECT count(*) - count(DISTINCT (month, customer)) FROM sent_email)"
    ).fetchone()


def issue(stage, program, names, topic="invoice.email", **environment):
    return stage.run([*program, "issue", MONTH, *names], EMAIL_TOPIC=topic, **environment)


def start_mailer(stage, program, broker, **environment):
    arguments, own = broker.consumer()
    return stage.start([*program, *arguments], **own, **environment)


def killed_between_any_two_steps_and_run_again(stage, program, boundaries, outbox):
    """Each job has one effect. The last of the boundaries is behind the commit."""
    names = customers(stage, len(boundaries))
    for done, (name, boundary) in enumerate(zip(names, boundaries)):
        code, text = issue(stage, program, [name], KILL_AT=boundary)
        assert code == KILLED, text
        expected = done + (boundary == boundaries[-1])
        assert counts(stage, outbox) == (expected, expected, 0, 0), f"after the kill at {boundary}"
        code, text = issue(stage, program, [name])
        assert code == 0, text
        assert counts(stage, outbox) == (done + 1, done + 1, 0, 0), f"after the run that follows {boundary}"
    code, text = issue(stage, program, names)
    assert (code, text) == (0, f"0 of {len(names)} invoices made"), "the second run changes nothing"
    assert counts(stage, outbox) == (len(names), len(names), 0, 0)


def run_twice_at_once(stage, program, outbox):
    """Each job has one effect, whichever of the two did it."""
    names = customers(stage, 20)
    command = [*program, "issue", MONTH, *names]
    both = [stage.start(command), stage.start(command)]
    for one in both:
        assert one.wait_exit() == 0, one.text()
    made = [int(one.text().split()[0]) for one in both]
    assert sum(made) == len(names), made
    assert counts(stage, outbox) == (len(names), len(names), 0, 0)
